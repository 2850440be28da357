"""Sequences of protobuf TensorProto messages (``*.pbseq``), read field by field within bounds.

A file is a varint count, then for each message a varint size and its bytes. Raw data is not read:
only its place is kept, so that a folder of any size takes no more memory than its tensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NoReturn

from edge_train import dtypes
from edge_train.checkpoint.format import MAX_RANK
from edge_train.checkpoint.source import MemorySource, Source, Span
from edge_train.checkpoint.tensor import Tensor
from edge_train.errors import ArtifactError, CheckpointCorrupt, CheckpointError

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_DIMS, _DATA_TYPE, _STRINGS, _NAME, _RAW, _LOCATION = 1, 2, 6, 8, 9, 14
_TYPED = frozenset((4, 5, 7, 10, 11))  # float, int32, int64, double and uint64 data
_MAX_TEXT = 2**20
_FEW_TENSORS, _BYTES_A_TENSOR = 16_384, 200  # more tensors than the first need a larger file


def read(source: Source) -> list[Tensor]:
    """The tensors of a file, names checked, shapes and sizes not.

    Raises CheckpointCorrupt (byte offset and reason) and CheckpointError for external data.
    """
    cursor = _Cursor(source, 0, source.size, "the file")
    count = cursor.varint()
    most = _FEW_TENSORS + source.size // _BYTES_A_TENSOR
    if count > most:
        cursor.fail(f"{count} tensors are said to be in {source.size} bytes, at most {most}")
    tensors = []
    for index in range(count):
        size = cursor.varint()
        tensors.append(_tensor(cursor.part(size, f"tensor {index} of {count}")))
    if cursor.at != cursor.end:
        cursor.fail(f"{cursor.end - cursor.at} bytes follow the last of {count} tensors")
    return tensors


class _Cursor:
    """A position in ``[at, end)`` of a source."""

    def __init__(self, source: Source, at: int, end: int, what: str) -> None:
        self.source, self.at, self.end, self.what = source, at, end, what

    def fail(self, reason: str) -> NoReturn:
        raise CheckpointCorrupt(
            f"checkpoint file {self.source.label} is damaged at byte {self.at} ({self.what}): "
            f"{reason}; use another copy"
        )

    def need(self, count: int) -> None:
        if self.at + count <= self.end:
            return
        if self.end == self.source.size and self.at + count < 2**31:
            raise CheckpointCorrupt(
                f"checkpoint file {self.source.label} is truncated: {self.end} of at least "
                f"{self.at + count} bytes ({self.what}); copy the whole folder again"
            )
        self.fail(f"{count} bytes do not fit into the {self.end - self.at} left")

    def varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            self.need(1)
            byte = self.source.read(self.at, 1)[0]
            self.at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & (2**64 - 1)
        self.fail("a varint of more than 10 bytes")

    def part(self, size: int, what: str) -> _Cursor:
        """The next ``size`` bytes, skipped here."""
        self.need(size)
        self.at += size
        return _Cursor(self.source, self.at - size, self.at, what)

    def span(self) -> Span:
        return Span(self.source, self.at, self.end - self.at)

    def data(self) -> bytes:
        size = self.end - self.at
        return self.source.read(self.at, size) if size else b""

    def text(self) -> str:
        if self.end - self.at > _MAX_TEXT:
            self.fail(f"text of {self.end - self.at} bytes, at most {_MAX_TEXT}")
        try:
            return self.data().decode("utf-8")
        except UnicodeDecodeError:
            self.fail("text that is not UTF-8")


@dataclass
class _Message:
    """What a TensorProto says of itself, and where its raw data lies."""

    name: str = ""
    data_type: int = 0
    dims: list[int] = field(default_factory=list)
    raw: Span | None = None
    strings: list[str] = field(default_factory=list)
    is_typed: bool = False
    is_external: bool = False


def _fields(cursor: _Cursor) -> Iterator[tuple[int, int | _Cursor]]:
    """Number and value of each field: an int for a varint, else the bytes."""
    while cursor.at < cursor.end:
        key = cursor.varint()
        number, kind = key >> 3, key & 7
        what = f"field {number} of {cursor.what}"
        if kind == _VARINT:
            yield number, cursor.varint()
        elif kind == _BYTES:
            yield number, cursor.part(cursor.varint(), what)
        elif kind in (_FIXED32, _FIXED64):
            yield number, cursor.part(4 if kind == _FIXED32 else 8, what)
        else:
            cursor.fail(f"no protobuf field has wire type {kind}")


def _message(cursor: _Cursor) -> _Message:
    message = _Message()
    for number, value in _fields(cursor):
        message.is_typed |= number in _TYPED
        if isinstance(value, int):
            _take_number(message, number, value, cursor)
        else:
            _take_bytes(message, number, value)
    return message


def _take_number(message: _Message, number: int, value: int, cursor: _Cursor) -> None:
    if number == _DATA_TYPE:
        message.data_type = value
    elif number == _LOCATION:
        message.is_external = value == 1
    elif number == _DIMS:
        _add_dim(message, value, cursor)


def _take_bytes(message: _Message, number: int, value: _Cursor) -> None:
    if number == _NAME:
        message.name = value.text()
    elif number == _RAW:
        message.raw = value.span()
    elif number == _STRINGS:
        message.strings.append(value.text())
    elif number == _DIMS:
        while value.at < value.end:
            _add_dim(message, value.varint(), value)


def _add_dim(message: _Message, value: int, cursor: _Cursor) -> None:
    if len(message.dims) == MAX_RANK:
        cursor.fail(f"more than {MAX_RANK} dims")
    message.dims.append(value - 2**64 if value >= 2**63 else value)


def _tensor(cursor: _Cursor) -> Tensor:
    start = cursor.at
    message = _message(cursor)
    cursor.at = start
    if not message.name:
        cursor.fail("a tensor without a name")
    if message.is_external:
        raise CheckpointError(
            f"checkpoint file {cursor.source.label}: tensor '{message.name}' keeps its data in "
            "another file, which is not read; save the checkpoint from a model without such data"
        )
    dims = tuple(message.dims)
    if message.data_type == dtypes.STRING:
        return Tensor(message.name, dtypes.STRING, dims, strings=tuple(message.strings))
    if message.raw is None and message.is_typed:
        return Tensor(message.name, message.data_type, dims, _typed(cursor))
    return Tensor(message.name, message.data_type, dims, message.raw)


def _typed(cursor: _Cursor) -> Span:
    """The bytes of a tensor whose values are in typed fields, as initializers may be."""
    from edge_train.graph import onnx_codec

    try:
        raw = onnx_codec.decode_tensor(cursor.data()).raw
    except ArtifactError as error:
        cursor.fail(str(error))
    return Span(MemorySource(raw or b""), 0, len(raw or b""))
