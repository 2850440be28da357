"""Host side: the same graph with floats of another width. Gradient checks evaluate it in double."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from edge_train import dtypes
from edge_train.graph import ir

FLOATS = (dtypes.FLOAT, dtypes.FLOAT16, dtypes.DOUBLE, dtypes.BFLOAT16)

# attributes that hold the number of an element type
_TYPED = ("to", "dtype", "output_dtype", "output_type", "stash_type")


def with_floats(model: ir.Model, kind: int) -> ir.Model:
    """The model with every floating tensor, input, output and Cast of element type ``kind``."""
    return replace(model, graph=_graph(model.graph, kind))


def tensor_of_kind(tensor: ir.Tensor, kind: int) -> ir.Tensor:
    """A constant with its values in another float type; other constants as they are."""
    if tensor.data_type not in FLOATS or tensor.data_type == kind:
        return tensor
    return ir.Tensor.of(tensor.name, _values(tensor).astype(dtypes.NUMPY[kind]))


def _values(tensor: ir.Tensor) -> np.ndarray:
    if tensor.data_type != dtypes.BFLOAT16:
        return tensor.array()
    high = np.frombuffer(tensor.raw or b"", "<u2").astype(np.uint32)
    return (high << 16).view(np.float32).reshape(tensor.dims)


def _graph(graph: ir.Graph, kind: int) -> ir.Graph:
    return replace(
        graph,
        nodes=[made for node in graph.nodes for made in _nodes(node, kind)],
        inputs=[_value(value, kind) for value in graph.inputs],
        outputs=[_value(value, kind) for value in graph.outputs],
        initializers={n: tensor_of_kind(t, kind) for n, t in graph.initializers.items()},
        value_info={n: _value(v, kind) for n, v in graph.value_info.items()},
    )


def _value(value: ir.Value, kind: int) -> ir.Value:
    if value.elem_type not in FLOATS:
        return value
    return ir.Value(value.name, kind, value.dims)


def _nodes(node: ir.Node, kind: int) -> list[ir.Node]:
    """The node, for Resize behind a Cast: its scales are float32 beside any other type."""
    made = _node(node, kind)
    if node.op_type != "Resize" or not node.input(2) or kind == dtypes.FLOAT:
        return [made]
    scales = f"{node.outputs[0]}/scales"
    cast = ir.make_node("Cast", [node.inputs[2]], [scales], scales, to=dtypes.FLOAT)
    return [cast, replace(made, inputs=(*node.inputs[:2], scales, *node.inputs[3:]))]


def _node(node: ir.Node, kind: int) -> ir.Node:
    table = {name: _attribute(value, kind) for name, value in node.attributes.items()}
    if node.op_type == "Constant":
        constants = (_constant(value, kind) for value in table.values())
        table = {constant.name: constant for constant in constants}
    if node.op_type == "ConstantOfShape" and "value" not in table:
        zero = ir.Tensor.of("value", np.zeros(1, dtypes.NUMPY[kind]))
        table["value"] = ir.Attribute.of("value", zero)
    return replace(node, attributes=table)


def _constant(attribute: ir.Attribute, kind: int) -> ir.Attribute:
    """value_float and value_floats are always float32: a tensor says the kind."""
    if attribute.name not in ("value_float", "value_floats"):
        return attribute
    values = np.array(attribute.value, dtypes.NUMPY[kind])
    return ir.Attribute.of("value", ir.Tensor.of("value", values))


def _attribute(attribute: ir.Attribute, kind: int) -> ir.Attribute:
    name, value = attribute.name, attribute.value
    if name in _TYPED and value in FLOATS:
        return replace(attribute, value=kind)
    if attribute.type == ir.TENSOR:
        return replace(attribute, value=tensor_of_kind(value, kind))
    if attribute.type == ir.GRAPH:
        return replace(attribute, value=_graph(value, kind))
    if attribute.type == ir.GRAPHS:
        return replace(attribute, value=tuple(_graph(body, kind) for body in value))
    return attribute
