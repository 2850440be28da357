"""An ONNX file without its large tensors: they become external data that lies in the file itself.

Works on the protobuf bytes, so that a model of any size is looked at without being read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol, overload

from edge_train.errors import ArtifactError


class Buffer(Protocol):
    """Bytes by index and by slice: bytes, a memoryview, an mmap, a window on a file."""

    def __len__(self) -> int: ...
    @overload
    def __getitem__(self, at: int, /) -> int: ...
    @overload
    def __getitem__(self, at: slice, /) -> Any: ...


# field numbers of onnx.proto
_GRAPH, _INITIALIZER = 7, 5
_NODE_TENSOR = (1, 5, 5)  # graph.node, node.attribute, attribute.t: the value of a Constant
_FLOAT_DATA, _RAW_DATA, _EXTERNAL_DATA, _DATA_LOCATION = 4, 9, 13, 14
_VARINT, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5


class Field(NamedTuple):
    """One field of a protobuf message: where its tag, its payload and its end are."""

    number: int
    wire: int
    start: int  # of the tag
    value: int  # of the payload
    end: int


def skeleton(data: Buffer, location: str, limit: int) -> bytes:
    """The model's bytes with each tensor of ``limit`` bytes or more (initializers, and values of
    Constant nodes) named as external data of file ``location``. ArtifactError for bytes that are
    no protobuf message."""
    out: list[bytes] = []
    for field in fields(data, 0, len(data)):
        if field.number == _GRAPH and field.wire == _BYTES:
            body = _graph(data, field, location, limit)
            out.append(delimited(_GRAPH, body))
        else:
            out.append(bytes(data[field.start : field.end]))
    return b"".join(out)


def _graph(data: Buffer, graph: Field, location: str, limit: int) -> bytes:
    out: list[bytes] = []
    for field in fields(data, graph.value, graph.end):
        if field.end - field.value < limit or field.wire != _BYTES:
            out.append(bytes(data[field.start : field.end]))
        elif field.number == _INITIALIZER:
            out.append(delimited(_INITIALIZER, _tensor(data, field, location, limit)))
        elif field.number == _NODE_TENSOR[0]:
            out.append(_inside(data, field, _NODE_TENSOR[1:], location, limit))
        else:
            out.append(bytes(data[field.start : field.end]))
    return b"".join(out)


def _inside(data: Buffer, message: Field, way: tuple[int, ...], location: str, limit: int) -> bytes:
    """A message with the tensor at the end of a way of field numbers cut."""
    if not way:
        return delimited(message.number, _tensor(data, message, location, limit))
    out: list[bytes] = []
    for field in fields(data, message.value, message.end):
        large = field.wire == _BYTES and field.end - field.value >= limit
        if large and field.number == way[0]:
            out.append(_inside(data, field, way[1:], location, limit))
        else:
            out.append(bytes(data[field.start : field.end]))
    return delimited(message.number, b"".join(out))


def _tensor(data: Buffer, tensor: Field, location: str, limit: int) -> bytes:
    out: list[bytes] = []
    end = b""
    for field in fields(data, tensor.value, tensor.end):
        length = field.end - field.value
        # packed floats are little-endian, as raw data is
        holds_data = field.number in (_RAW_DATA, _FLOAT_DATA) and field.wire == _BYTES
        if holds_data and length >= limit:
            entries = (("location", location), ("offset", field.value), ("length", length))
            out += [delimited(_EXTERNAL_DATA, _entry(key, str(value))) for key, value in entries]
            end = bytes((_DATA_LOCATION << 3 | _VARINT, 1))
        else:
            out.append(bytes(data[field.start : field.end]))
    return b"".join(out) + end  # behind a data_location of the file, which it overrules


def _entry(key: str, value: str) -> bytes:
    return delimited(1, key.encode()) + delimited(2, value.encode())


def delimited(number: int, body: bytes) -> bytes:
    """A field of bytes."""
    return varint(number << 3 | _BYTES) + varint(len(body)) + body


def varint(value: int) -> bytes:
    """A number, seven bits a byte."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def fields(data: Buffer, start: int, end: int) -> Iterator[Field]:
    """The fields of a message; ArtifactError for bytes that are none."""
    at = start
    while at < end:
        tag, value = _read_varint(data, at, end)
        number, wire = tag >> 3, tag & 7
        if wire == _BYTES:
            length, value = _read_varint(data, value, end)
            stop = value + length
        elif wire == _VARINT:
            stop = _read_varint(data, value, end)[1]
        elif wire in (_EIGHT, _FOUR):
            stop = value + (8 if wire == _EIGHT else 4)
        else:
            raise ArtifactError(f"byte {at} begins no protobuf field")
        if stop > end or number == 0:
            raise ArtifactError(f"the field at byte {at} is damaged, or the file is cut short")
        yield Field(number, wire, at, value, stop)
        at = stop


def _read_varint(data: Buffer, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 64:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
    raise ArtifactError(f"the number at byte {at} is damaged, or the file is cut short")
