"""ONNX messages with every field in use: random ones, and ones from the wire up."""

from __future__ import annotations

import random
from typing import Any

import onnx
from google.protobuf.descriptor import FieldDescriptor

#: a field number that ONNX does not use, with three bytes
UNKNOWN = b"\xfa\x7c\x03abc"

_NUMBERS = {FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE}
_DEPTH = 8


def _is_repeated(field: Any) -> bool:
    if hasattr(field, "is_repeated"):
        return bool(field.is_repeated)
    return bool(field.label == field.LABEL_REPEATED)  # protobuf before 6.31


class RandomMessages:
    """Fills ONNX messages at random, presence of fields included.

    Kept sane: names are unique where ONNX wants it, the integers of typed tensor data fit every
    data type, and the entries of external_data are a key and a value.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._count = 0

    def model(self) -> onnx.ModelProto:
        """A model; ``HasField("graph")`` holds."""
        message = onnx.ModelProto()
        self._fill(message, 0)
        message.graph.SetInParent()
        return message

    def _fill(self, message: Any, depth: int) -> None:
        for field in message.DESCRIPTOR.fields:
            if self._random.random() < 0.6:
                self._fill_field(message, field, depth)
        kind = message.DESCRIPTOR.name
        if self._random.random() < 0.2 and kind != "StringStringEntryProto":
            message.MergeFromString(UNKNOWN)
        if kind in ("AttributeProto", "TensorProto"):
            self._count += 1
            message.name = f"unique_{self._count}"
        if kind == "StringStringEntryProto":
            message.key, message.value = "location", ""
        if kind == "OperatorSetIdProto":
            self._count += 1
            message.domain = f"domain_{self._count}" if self._count % 3 else ""

    def _fill_field(self, message: Any, field: Any, depth: int) -> None:
        many = _is_repeated(field)
        if field.message_type is not None:
            if depth >= _DEPTH or (depth > 3 and self._random.random() < 0.6):
                return
            for _ in range(self._random.randint(1, 2) if many else 1):
                child = getattr(message, field.name)
                if many:
                    child = child.add()
                child.SetInParent()
                self._fill(child, depth + 1)
        elif many:
            values = [self._scalar(field) for _ in range(self._random.randint(0, 3))]
            getattr(message, field.name).extend(values)
        else:
            setattr(message, field.name, self._scalar(field))

    def _scalar(self, field: Any) -> Any:
        if field.enum_type is not None:
            return self._random.choice([value.number for value in field.enum_type.values])
        if field.cpp_type in _NUMBERS:
            return self._random.choice([0.0, 1.0, -0.5])
        if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
            text = self._random.choice(["", "a", "name ü"])
            return text if field.type == FieldDescriptor.TYPE_STRING else text.encode()
        if field.name == "data_type":
            return self._random.randint(0, 25)
        return self._random.randint(0, 1)


def record(number: int, body: bytes) -> bytes:
    """A length-delimited field."""
    return bytes([number << 3 | 2]) + _varint(len(body)) + body


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def nested_graphs(levels: int) -> bytes:
    """A model of graphs in attributes of nodes of graphs."""
    graph = b""
    for _ in range(levels):
        graph = record(1, record(5, record(6, graph)))
    return record(7, graph)
