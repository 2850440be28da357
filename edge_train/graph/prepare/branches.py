"""Replaces an If whose condition is known by the branch that it takes.

Exporters write such an If around Squeeze, to ask for a size that the model may declare. Where it
does not, the squeezing branch is taken: onnxruntime stops there if the size is not 1.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

import numpy as np

from edge_train import dtypes
from edge_train.graph import ir
from edge_train.graph.casting import converted
from edge_train.graph.parameters import parameter_names
from edge_train.graph.passes import all_names, renamed
from edge_train.graph.prepare.names import name_nodes
from edge_train.graph.shape_rules import ints
from edge_train.graph.shapes import Shapes

MAX_ITEMS = 64

#: what conditions are made of; the operands are single values
_OPS: dict[str, Callable[..., np.ndarray]] = {
    "And": np.logical_and,
    "Equal": np.equal,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
    "Less": np.less,
    "LessOrEqual": np.less_equal,
    "Not": np.logical_not,
    "Or": np.logical_or,
    "Xor": np.logical_xor,
}
#: the same values in another shape
_MOVES = ("Identity", "Reshape", "Squeeze", "Unsqueeze")


def fold_branches(model: ir.Model, weights: Collection[str] = ()) -> ir.Model:
    """The model without the Ifs whose condition is constant, or follows from declared sizes.

    ``weights``: initializers that training changes.
    """
    graph = model.graph
    while True:
        index = _decided(graph, weights)
        if index is None:
            break
        graph = _folded(graph, *index)
    # names of nodes may repeat in branches, not in a graph
    return model if graph is model.graph else name_nodes(replace(model, graph=graph))


def _decided(graph: ir.Graph, weights: Collection[str]) -> tuple[int, bool] | None:
    """The first If with a known condition, and its value."""
    ifs = [index for index, node in enumerate(graph.nodes) if node.op_type == "If"]
    if not ifs:
        return None
    condition = _Condition(graph, {*weights, *parameter_names(graph)[0]})
    for index in ifs:
        value = condition.value(graph.nodes[index].input(0))
        if value is not None and value.size == 1:
            return index, bool(value[0])
    squeezes = (index for index in ifs if condition.is_squeeze(graph.nodes[index]))
    return next(((index, True) for index in squeezes), None)


class _Condition:
    """Evaluates what a condition is computed from: constants and sizes."""

    def __init__(self, graph: ir.Graph, weights: Collection[str] = ()) -> None:
        self._graph, self._shapes = graph, Shapes.of(graph)
        self._producers, self._weights = graph.producers(), weights

    def value(self, name: str) -> np.ndarray | None:
        """The flat value of a tensor, None if it is not known."""
        sizes, kind = ints(self._shapes.contents(name)), self._shapes.elem_type(name) or 0
        if name in self._weights:
            return None
        if sizes is not None and kind in dtypes.NUMPY:
            return np.array(sizes, dtypes.NUMPY[kind])
        node = self._producers.get(name)
        tensor = self._graph.initializers.get(name)
        if node is not None and node.op_type == "Constant":
            tensor = node.attr("value")
        if tensor is not None:
            return _held(tensor)
        if node is None or node.domain not in ir.ONNX_DOMAINS:
            return None
        return self._computed(node)

    def _computed(self, node: ir.Node) -> np.ndarray | None:
        if node.op_type in _MOVES:
            return self.value(node.inputs[0])
        if node.op_type == "Cast":
            value = self.value(node.inputs[0])
            return None if value is None else converted(value, node.attr("to"))
        operands = [self.value(name) for name in node.inputs] if node.op_type in _OPS else []
        known = [operand for operand in operands if operand is not None and operand.size == 1]
        if not known or len(known) < len(operands):
            return None
        result: np.ndarray = _OPS[node.op_type](*known)
        return result

    def is_squeeze(self, node: ir.Node) -> bool:
        """Whether an If squeezes an axis if its size is 1, and else hands the tensor on."""
        then, other = (_only(node.attr(f"{name}_branch")) for name in ("then", "else"))
        if not then or not other or then.op_type != "Squeeze" or other.op_type != "Identity":
            return False
        test = self._producers.get(node.inputs[0])
        if test is None or test.op_type != "Equal" or then.inputs[0] != other.inputs[0]:
            return False
        axis = self._squeezed_axis(node.attr("then_branch"), then)
        return axis is not None and any(
            self._is_size(name, then.inputs[0], axis) and _is_one(self.value(one))
            for name, one in (test.inputs, test.inputs[::-1])
        )

    def _squeezed_axis(self, body: ir.Graph, node: ir.Node) -> int | None:
        axes = node.attr("axes")
        if node.input(1):
            axes = _Condition(body).value(node.inputs[1])
            axes = self.value(node.inputs[1]) if axes is None else axes
        return int(axes[0]) if axes is not None and len(axes) == 1 else None

    def _is_size(self, name: str, x: str, axis: int) -> bool:
        """Whether a tensor is the size of ``x`` along the axis."""
        gather = self._producers.get(name)
        if gather is None or gather.op_type != "Gather":
            return False
        shape, index = self._producers.get(gather.inputs[0]), self.value(gather.inputs[1])
        if shape is None or shape.op_type != "Shape" or shape.inputs[0] != x or index is None:
            return False
        if {"start", "end"} & set(shape.attributes):  # places in a part of the sizes
            return False
        rank = self._shapes.rank(x) or 0
        same = index.size == 1 and index[0] == axis
        return bool(same or (index.size == 1 and rank and (index[0] - axis) % rank == 0))


def _held(tensor: ir.Tensor) -> np.ndarray | None:
    """The flat value of a small constant."""
    known = tensor.data_type in dtypes.NUMPY and tensor.raw is not None
    return tensor.array().ravel() if known and len(tensor.raw or b"") <= 8 * MAX_ITEMS else None


def _is_one(value: np.ndarray | None) -> bool:
    return value is not None and value.size == 1 and value[0] == 1


def _only(body: ir.Graph) -> ir.Node | None:
    """The one node of a branch besides constants."""
    nodes = [node for node in body.nodes if node.op_type != "Constant"]
    return nodes[0] if len(nodes) == 1 else None


def _folded(graph: ir.Graph, index: int, value: bool) -> ir.Graph:
    """The graph with one If replaced by a branch."""
    node = graph.nodes[index]
    body: ir.Graph = node.attr("then_branch" if value else "else_branch")
    rest = replace(graph, nodes=[*graph.nodes[:index], *graph.nodes[index + 1 :]])
    name_of = _naming(node, body, all_names(rest))
    moved = [replace(tensor, name=name_of(name)) for name, tensor in body.initializers.items()]
    nodes = [renamed(item, name_of) for item in body.nodes]
    for end, outside in zip(body.outputs, node.outputs, strict=False):
        if outside and name_of(end.name) != outside:
            nodes.append(ir.make_node("Identity", [name_of(end.name)], [outside], outside))
    return replace(
        graph,
        nodes=[*graph.nodes[:index], *nodes, *graph.nodes[index + 1 :]],
        initializers={**graph.initializers, **{tensor.name: tensor for tensor in moved}},
    )


def _naming(node: ir.Node, body: ir.Graph, taken: set[str]) -> Callable[[str], str]:
    """Names of the branch's tensors outside: that of the If's output, or their own where free."""
    made = {name for item in body.nodes for name in item.outputs if name}
    ends = zip(body.outputs, node.outputs, strict=False)
    table = {end.name: outside for end, outside in ends if outside and end.name in made}
    for name in sorted((made | set(body.initializers)) - set(table)):
        table[name] = name if name not in taken else f"{node.outputs[0]}/{name}"
    return lambda name: table.get(name, name)
