"""Replaces an If whose condition is known by the branch that it takes.

Exporters write such an If around Squeeze, to ask for a size that the model may declare. Where it
does not, the squeezing branch is taken: onnxruntime stops there if the size is not 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from edge_train.graph import ir
from edge_train.graph.passes import all_names, renamed
from edge_train.graph.prepare.names import name_nodes
from edge_train.graph.shape_rules import ints
from edge_train.graph.shapes import Shapes

MAX_ITEMS = 64

#: what conditions are made of; the operands are flat
_OPS: dict[str, Callable[..., np.ndarray]] = {
    "And": np.logical_and,
    "Cast": np.asarray,
    "Equal": np.equal,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
    "Identity": np.asarray,
    "Less": np.less,
    "LessOrEqual": np.less_equal,
    "Not": np.logical_not,
    "Or": np.logical_or,
    "Reshape": np.asarray,
    "Squeeze": np.asarray,
    "Unsqueeze": np.asarray,
    "Xor": np.logical_xor,
}
_FIRST_ONLY = ("Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze")


def fold_branches(model: ir.Model) -> ir.Model:
    """The model without the Ifs whose condition is constant, or follows from declared sizes."""
    graph = model.graph
    while True:
        index = _decided(graph)
        if index is None:
            break
        graph = _folded(graph, *index)
    # names of nodes may repeat in branches, not in a graph
    return model if graph is model.graph else name_nodes(replace(model, graph=graph))


def _decided(graph: ir.Graph) -> tuple[int, bool] | None:
    """The first If with a known condition, and its value."""
    ifs = [index for index, node in enumerate(graph.nodes) if node.op_type == "If"]
    if not ifs:
        return None
    condition = _Condition(graph)
    for index in ifs:
        value = condition.value(graph.nodes[index].input(0))
        if value is not None and value.size == 1:
            return index, bool(value[0])
    squeezes = (index for index in ifs if condition.is_squeeze(graph.nodes[index]))
    return next(((index, True) for index in squeezes), None)


class _Condition:
    """Evaluates what a condition is computed from: constants and sizes."""

    def __init__(self, graph: ir.Graph) -> None:
        self._graph, self._shapes = graph, Shapes.of(graph)
        self._producers = graph.producers()

    def value(self, name: str) -> np.ndarray | None:
        """The flat value of a tensor, None if it is not known."""
        sizes = ints(self._shapes.contents(name))
        if sizes is not None:
            return np.array(sizes, np.int64)
        node = self._producers.get(name)
        tensor = self._graph.initializers.get(name)
        if node is not None and node.op_type == "Constant":
            tensor = node.attr("value")
        if tensor is not None:
            small = tensor.raw is not None and len(tensor.raw) <= 8 * MAX_ITEMS
            return tensor.array().ravel() if small else None
        if node is None or node.op_type not in _OPS:
            return None
        names = node.inputs[:1] if node.op_type in _FIRST_ONLY else node.inputs
        operands = [self.value(item) for item in names]
        if any(operand is None for operand in operands):
            return None
        result: np.ndarray = _OPS[node.op_type](*operands)
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
        rank = self._shapes.rank(x) or 0
        same = index.size == 1 and index[0] == axis
        return bool(same or (index.size == 1 and rank and (index[0] - axis) % rank == 0))


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
