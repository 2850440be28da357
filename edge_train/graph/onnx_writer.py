"""The IR -> ONNX protobuf messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from edge_train.graph import ir
from edge_train.graph.onnx_schema import EXTERNAL, VALUE_FIELD, TypeProto, typed_field
from edge_train.graph.onnx_types import read_type, write_type


def write_model(message: Any, model: ir.Model) -> None:
    """Fills an empty ModelProto."""
    _merge(message, model.extra, {"ir_version": model.ir_version})
    for domain, version in model.opset_imports:
        item = message.opset_import.add()
        _merge(item, model.import_extra.get(domain, b""), {"version": version})
        _set_text(item, domain=domain)
    message.functions.extend(model.functions)
    message.graph.SetInParent()
    _write_graph(message.graph, model.graph)


def _merge(message: Any, extra: bytes, numbers: dict[str, int]) -> None:
    if extra:
        message.MergeFromString(extra)
    for field, value in numbers.items():
        if value:
            setattr(message, field, value)


def _set_text(message: Any, **fields: str) -> None:
    for field, text in fields.items():
        if text:
            setattr(message, field, text.encode())


def _write_graph(message: Any, graph: ir.Graph) -> None:
    _merge(message, graph.extra, {})
    _set_text(message, name=graph.name)
    for node in graph.nodes:
        _write_node(message.node.add(), node)
    for tensor in graph.initializers.values():
        write_tensor(message.initializer.add(), tensor)
    for field, values in (
        ("input", graph.inputs),
        ("output", graph.outputs),
        ("value_info", graph.value_info.values()),
    ):
        for value in values:
            _write_value(getattr(message, field).add(), value)


def _write_node(message: Any, node: ir.Node) -> None:
    _merge(message, node.extra, {})
    _set_text(message, op_type=node.op_type, name=node.name, domain=node.domain)
    message.input.extend([name.encode() for name in node.inputs])
    message.output.extend([name.encode() for name in node.outputs])
    for attribute in node.attributes.values():
        _write_attribute(message.attribute.add(), attribute)


def _write_attribute(message: Any, attribute: ir.Attribute) -> None:
    numbers = {} if "type" in attribute.absent else {"type": attribute.type}
    _merge(message, attribute.extra, numbers)
    _set_text(message, name=attribute.name)
    field = VALUE_FIELD.get(attribute.type)
    if field is None or field in attribute.absent:
        return
    if attribute.type < ir.TENSOR:
        setattr(message, field, attribute.value)
    elif attribute.type in _WRITERS:
        getattr(message, field).SetInParent()
        _WRITERS[attribute.type](getattr(message, field), attribute.value)
    elif attribute.type < ir.TENSORS:
        getattr(message, field).extend(attribute.value)
    else:
        for item in attribute.value:
            _WRITERS[attribute.type - (ir.FLOATS - ir.FLOAT)](getattr(message, field).add(), item)


def write_tensor(message: Any, tensor: ir.Tensor) -> None:
    """Fills an empty TensorProto."""
    _merge(message, tensor.extra, {"data_type": tensor.data_type})
    _set_text(message, name=tensor.name)
    message.dims.extend(tensor.dims)
    if tensor.strings is not None:
        message.string_data.extend(tensor.strings)
    elif tensor.raw is None:
        _write_external(message, tensor)
    elif tensor.field == "raw_data":
        message.raw_data = tensor.raw
    else:
        field, item_type = typed_field(tensor.data_type)
        getattr(message, field).extend(np.frombuffer(tensor.raw, item_type).tolist())


def _write_external(message: Any, tensor: ir.Tensor) -> None:
    if tensor.external:
        message.data_location = EXTERNAL
    for key, value in tensor.external:
        message.external_data.add(key=key.encode(), value=value.encode())


def _write_value(message: Any, value: ir.Value) -> None:
    _merge(message, value.extra, {})
    _set_text(message, name=value.name)
    if value.type_proto is not None:
        kept = TypeProto()
        kept.MergeFromString(value.type_proto)
        # a pass may have given the value another type since it was read
        if read_type(kept) == (value.elem_type, value.dims):
            message.type.SetInParent()
            message.type.CopyFrom(kept)
            return
    if value.elem_type is not None or value.dims is not None:
        write_type(message.type, value.elem_type, value.dims)


_WRITERS: dict[int, Callable[[Any, Any], None]] = {
    ir.TENSOR: write_tensor,
    ir.GRAPH: _write_graph,
}
