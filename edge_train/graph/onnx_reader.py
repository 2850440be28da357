"""ONNX protobuf messages -> the IR; reading empties the messages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np

from edge_train import dtypes
from edge_train.errors import ArtifactError
from edge_train.graph import ir
from edge_train.graph.onnx_schema import EXTERNAL, VALUE_FIELD, TypeProto, typed_field
from edge_train.graph.onnx_types import read_type, write_type

TypeInfo: TypeAlias = "tuple[int | None, tuple[ir.Dim, ...] | None, bytes | None]"


def _extra(message: Any, fields: Iterable[str]) -> bytes:
    """What is left of a message without the modelled fields; empties the message."""
    for field in fields:
        if getattr(message, field):
            message.ClearField(field)
    rest: bytes = message.SerializeToString()
    return rest


def read_model(message: Any) -> ir.Model:
    """The model of a ModelProto; ArtifactError or UnicodeDecodeError."""
    types: dict[bytes, TypeInfo] = {}
    graph = _graph(message.graph, types)
    imports = [(item.domain.decode(), item.version) for item in message.opset_import]
    import_extra = {}
    for (domain, _), item in zip(imports, message.opset_import, strict=True):
        import_extra[domain] = _extra(item, ("domain", "version"))
    version, functions = message.ir_version, tuple(message.functions)
    extra = _extra(message, ("graph", "opset_import", "ir_version", "functions"))
    return ir.Model(graph, version, imports, extra, import_extra, functions)


def _graph(message: Any, types: dict[bytes, TypeInfo]) -> ir.Graph:
    name = message.name.decode()
    initializers: dict[str, ir.Tensor] = {}
    for item in message.initializer:
        tensor = read_tensor(item)
        if tensor.name in initializers:
            raise ArtifactError(f"graph '{name}' has two initializers named '{tensor.name}'")
        initializers[tensor.name] = tensor
    value_info: dict[str, ir.Value] = {}
    for item in message.value_info:
        value = _value(item, types)
        # a name declared twice is kept, under a key that nobody asks for
        again = f"{value.name}\0{len(value_info)}"
        value_info[value.name if value.name not in value_info else again] = value
    graph = ir.Graph(
        name,
        [read_node(item, types) for item in message.node],
        [_value(item, types) for item in message.input],
        [_value(item, types) for item in message.output],
        initializers,
        value_info,
    )
    graph.extra = _extra(message, ("name", "initializer", "value_info", "node", "input", "output"))
    return graph


def read_node(message: Any, types: dict[bytes, TypeInfo]) -> ir.Node:
    """The node of a NodeProto; ArtifactError or UnicodeDecodeError."""
    name, op_type = message.name.decode(), message.op_type.decode()
    inputs = tuple([item.decode() for item in message.input])
    outputs = tuple([item.decode() for item in message.output])
    domain = message.domain.decode()
    attributes: dict[str, ir.Attribute] = {}
    for item in message.attribute:
        attribute = read_attribute(item, types)
        if attribute.name in attributes:
            raise ArtifactError(f"node {op_type} '{name}' has attribute '{attribute.name}' twice")
        attributes[attribute.name] = attribute
    extra = _extra(message, ("input", "output", "name", "op_type", "domain", "attribute"))
    return ir.Node(op_type, inputs, outputs, name, domain, attributes, extra)


def read_attribute(message: Any, types: dict[bytes, TypeInfo]) -> ir.Attribute:
    """The attribute of an AttributeProto; ArtifactError or UnicodeDecodeError."""
    kind = message.type or _kind_by_presence(message)
    field = VALUE_FIELD.get(kind)
    value = _attribute_value(kind, getattr(message, field), types) if field else None
    absent = [] if message.type else ["type"]
    if field and kind < ir.FLOATS and not message.HasField(field):
        absent.append(field)
    name = message.name.decode()
    if field:
        message.ClearField(field)
    return ir.Attribute(name, kind, value, _extra(message, ("name", "type")), tuple(absent))


def _kind_by_presence(message: Any) -> int:
    """The type of an attribute of an old file, where only the value is written; 0 if none is."""
    for kind, field in VALUE_FIELD.items():
        if message.HasField(field) if kind < ir.FLOATS else len(getattr(message, field)):
            return kind
    return 0


def _attribute_value(kind: int, value: Any, types: dict[bytes, TypeInfo]) -> Any:
    if kind < ir.TENSOR:
        return value
    if kind == ir.TENSOR:
        return read_tensor(value)
    if kind == ir.GRAPH:
        return _graph(value, types)
    return tuple([_attribute_value(kind - (ir.FLOATS - ir.FLOAT), item, types) for item in value])


def read_tensor(message: Any) -> ir.Tensor:
    """The tensor of a TensorProto; UnicodeDecodeError."""
    name, dims, data_type = message.name.decode(), tuple(message.dims), message.data_type
    fields = ["name", "dims", "data_type"]
    external: tuple[tuple[str, str], ...] = ()
    raw, strings, place = None, None, "raw_data"
    if message.data_location == EXTERNAL and message.external_data:
        external = tuple((e.key.decode(), e.value.decode()) for e in message.external_data)
        fields += ["external_data", "data_location"]
    elif message.HasField("raw_data"):
        raw = message.raw_data
        message.ClearField("raw_data")
    elif data_type == dtypes.STRING:
        strings, place = tuple(message.string_data), "string_data"
    elif 0 < data_type < 30:
        place, item_type = typed_field(data_type)
        raw = _typed_bytes(getattr(message, place), data_type, item_type)
    if place != "raw_data":
        message.ClearField(place)
    return ir.Tensor(name, data_type, dims, raw, place, external, _extra(message, fields), strings)


def _typed_bytes(items: Any, data_type: int, item_type: str) -> bytes:
    wide = {"f": np.float64, "i": np.int64, "u": np.uint64 if item_type == "<u8" else np.int64}
    values = np.fromiter(items, wide[item_type[1]], len(items))
    if data_type == dtypes.BOOL:
        values = values != 0
    return values.astype(item_type).tobytes()


def _value(message: Any, types: dict[bytes, TypeInfo]) -> ir.Value:
    info: TypeInfo = (None, None, None)
    if message.HasField("type"):
        raw = message.type.SerializeToString()
        if raw not in types:
            types[raw] = _type_info(message.type, raw)
        info = types[raw]
        message.ClearField("type")
    name = message.name.decode()
    return ir.Value(name, *info, _extra(message, ("name",)))


def _type_info(message: Any, raw: bytes) -> TypeInfo:
    """Element type, dims, and the bytes of the type where these two do not say all of it."""
    elem_type, dims = read_type(message)
    complete = TypeProto()
    write_type(complete, elem_type, dims)
    return elem_type, dims, None if raw and complete.SerializeToString() == raw else raw
