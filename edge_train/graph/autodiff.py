"""Reverse-mode differentiation of a graph: walk back from the loss, one rule a node.

Names are those of onnxruntime's gradient builder: ``<tensor>_grad``, partial gradients
``<tensor>_grad_0``, ``_1`` … with a Sum ``AccumulateGrad_<tensor>_grad``, nodes
``<forward node>_Grad/<Op>_<i>``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from edge_train import dtypes
from edge_train.errors import ArtifactError, UnsupportedOp
from edge_train.graph import ir
from edge_train.graph.broadcast import unbroadcast
from edge_train.graph.formula import Refuse
from edge_train.graph.gradients import NO_GRADIENT, REFUSED, RULES, key_of
from edge_train.graph.gradients.builder import Gradients
from edge_train.graph.passes import outer_reads
from edge_train.graph.shapes import Shapes

FLOATS = (dtypes.FLOAT, dtypes.FLOAT16, dtypes.DOUBLE, dtypes.BFLOAT16)


def differentiate(
    graph: ir.Graph, shapes: Shapes, loss: str, wanted: Sequence[str], frozen: Sequence[str] = ()
) -> tuple[ir.Graph, dict[str, str]]:
    """``graph`` with the gradients of ``loss`` after its own nodes, and tensor -> gradient name.

    ``frozen``: initializers that are parameters beside those of ``wanted``.
    Tensors of ``wanted`` that the loss does not depend on are missing from the table.
    Errors: UnsupportedOp listing every node on the path that has no gradient; ArtifactError for a
    loss that is not one number.
    """
    _check_loss(shapes, loss)
    path = _Path(graph, shapes, [loss], wanted)
    path.check()
    g = Gradients(graph, shapes)
    g.variables = frozenset((*wanted, *frozen))
    seed = f"{loss}_grad"
    kind = dtypes.NUMPY[g.elem_type(loss)]
    g.constants[seed] = ir.Tensor.of(seed, np.ones(_sizes(shapes, loss), kind))
    found = _walked(g, path, {loss: [seed]}, wanted)
    return _joined(graph, g), found


def _walked(
    g: Gradients, path: _Path, partials: dict[str, list[str]], wanted: Sequence[str]
) -> dict[str, str]:
    problems: list[str] = []
    for node in reversed(path.nodes):
        dys = [_accumulated(g, name, partials) if name else "" for name in node.outputs]
        try:
            _apply(g, path, node, dys, partials)
        except Refuse as reason:
            problems.append(f"{node.describe()}: {reason}")
    if problems:
        raise UnsupportedOp(_listed(problems))
    found = {name: _accumulated(g, name, partials) for name in wanted}
    return {name: value for name, value in found.items() if value}


def differentiate_body(
    g: Gradients, nodes: list[ir.Node], seeds: Sequence[tuple[str, str]], wanted: Sequence[str]
) -> dict[str, str]:
    """Adds the backward pass of nodes that stand in ``g`` already: the body of a loop.

    ``seeds``: pairs of a tensor and its gradient. Returns tensor -> gradient for those of
    ``wanted`` that a gradient arrives at. Refuse for nodes without gradient.
    """
    path = _Path(ir.Graph(nodes=nodes), g.shapes, [name for name, _ in seeds], wanted)
    if path.missing():
        raise Refuse("in its body: " + "; ".join(path.missing()))
    partials: dict[str, list[str]] = {}
    for name, gradient in seeds:
        partials.setdefault(name, []).append(gradient)
        path.uses[name] += 1  # the gradient from outside counts as one of a reader
    try:
        return _walked(g, path, partials, wanted)
    except UnsupportedOp as error:
        raise Refuse(f"in its body: {error}") from error


@dataclass(frozen=True)
class Survey:
    """What stands between a loss and its gradients, found without building anything."""

    problems: tuple[str, ...]  # of the loss itself
    unreached: tuple[str, ...]  # wanted tensors that the loss does not depend on
    missing: tuple[str, ...]  # nodes without a gradient


def survey(graph: ir.Graph, shapes: Shapes, loss: str, wanted: Sequence[str]) -> Survey:
    """Looks before ``differentiate`` leaps: everything that it would refuse node by node."""
    problems = []
    try:
        _check_loss(shapes, loss)
    except ArtifactError as error:
        problems.append(str(error))
    path = _Path(graph, shapes, [loss], wanted)
    reached = set(path.uses).union(*(outer_reads(node) for node in path.nodes))
    unreached = tuple(name for name in wanted if name not in reached)
    return Survey(tuple(problems), unreached, tuple(path.missing()))


def _check_loss(shapes: Shapes, loss: str) -> None:
    dims = shapes.dims(loss)
    if dims is not None and any(dim != 1 for dim in dims):
        raise ArtifactError(
            f"the loss '{loss}' has shape {dims}, expected one number; reduce it with a mean or sum"
        )
    if shapes.elem_type(loss) not in (None, *FLOATS):
        raise ArtifactError(f"the loss '{loss}' is {dtypes.name_of(shapes.elem_type(loss) or 0)}")


def _sizes(shapes: Shapes, name: str) -> tuple[int, ...]:
    return tuple(int(dim) for dim in shapes.dims(name) or () if isinstance(dim, int))


class _Path:
    """The nodes between the wanted tensors and the ends, and how often each tensor is read."""

    def __init__(
        self, graph: ir.Graph, shapes: Shapes, ends: Sequence[str], wanted: Sequence[str]
    ) -> None:
        self._shapes = shapes
        active = set(wanted)
        forward = []
        for node in graph.nodes:
            if key_of(node) not in NO_GRADIENT and self._reads(node, active):
                forward.append(node)
                active.update(name for name in node.outputs if name and self._carries(node, name))
        needed, nodes = set(ends), []
        for node in reversed(forward):
            if needed.intersection(filter(None, node.outputs)):
                nodes.append(node)
                needed.update(self._names(node, active), _inner_reads(node) & active)
        self.nodes = nodes[::-1]
        self._active = active
        reads = (name for node in self.nodes for name in self._names(node, active))
        self.uses = Counter(reads)

    def _carries(self, node: ir.Node, name: str) -> bool:
        """Whether a gradient flows through a tensor that the node reads or makes."""
        if self._shapes.elem_type(name) in (None, *FLOATS):
            return True
        entry = RULES.get(key_of(node))
        return entry is not None and entry.quantized

    def _reads(self, node: ir.Node, active: set[str]) -> bool:
        return bool(self._names(node, active)) or bool(_inner_reads(node) & active)

    def _names(self, node: ir.Node, active: set[str]) -> list[str]:
        return [node.inputs[index] for index in self._indices(node, active)]

    def _indices(self, node: ir.Node, active: set[str]) -> list[int]:
        entry = RULES.get(key_of(node))
        cut = entry.cut if entry else ()
        return [
            index
            for index, name in enumerate(node.inputs)
            if name in active and index not in cut and self._carries(node, name)
        ]

    def wanted(self, node: ir.Node) -> frozenset[int]:
        """The inputs of a node on the path that need a gradient."""
        return frozenset(self._indices(node, self._active))

    def captured(self, node: ir.Node) -> frozenset[str]:
        """Tensors with a gradient that the subgraphs of a node read."""
        return frozenset(_inner_reads(node) & self._active)

    def missing(self) -> list[str]:
        """A line for every node on the path without a rule."""
        hint = "no gradient is known for this op"
        return [
            f"{node.describe()}: {REFUSED.get(key_of(node), hint)}"
            for node in self.nodes
            if key_of(node) not in RULES
        ]

    def check(self) -> None:
        """UnsupportedOp listing every node on the path without a rule."""
        lines = self.missing()
        if lines:
            raise UnsupportedOp(_listed(lines))


def _inner_reads(node: ir.Node) -> set[str]:
    """The outer tensors that the subgraphs of a node read."""
    reads: set[str] = set()
    for body in ir.subgraphs(node):
        own = {value.name for value in body.inputs} | set(body.initializers)
        own.update(name for inner in body.nodes for name in inner.outputs)
        inside = {value.name for value in body.outputs}
        inside.update(*(inner.inputs for inner in body.nodes), *map(_inner_reads, body.nodes))
        reads |= inside - own
    return reads


def _listed(lines: list[str]) -> str:
    listed = "\n  ".join(lines)
    return f"{len(lines)} node(s) between the trained parameters and the loss:\n  {listed}"


def _apply(
    g: Gradients, path: _Path, node: ir.Node, dys: list[str], partials: dict[str, list[str]]
) -> None:
    entry = RULES[key_of(node)]
    wanted = path.wanted(node)
    g.enter(node, wanted, path.captured(node))
    start = len(g.nodes)
    results = entry.rule(g, node, *dys)
    if isinstance(results, str):
        results = (results,)
    final: dict[str, str] = {}  # a result that already has its final name, as another input's
    for index, result in enumerate(results):
        if result is None or index not in wanted:
            continue
        target, result = node.inputs[index], final.get(result, result)
        if entry.broadcasts:
            result = unbroadcast(g, result, node.outputs[0], target)
        parts = partials.setdefault(target, [])
        name = f"{target}_grad" if path.uses[target] == 1 else f"{target}_grad_{len(parts)}"
        final[_name_result(g, start, result, name, final)] = name
        g.shapes.set(name, _kind(g, target, result), g.shapes.dims(target))
        parts.append(name)


def _name_result(g: Gradients, start: int, result: str, name: str, final: Mapping[str, str]) -> str:
    """Lets a rule's result have its final name; what is not the rule's own gets an Identity.

    Returns the name that is gone.
    """
    own = {output for node in g.nodes[start:] for output in node.outputs}
    if result in final.values() or result not in own:
        result = g.op("Identity", result)
    table = {result: name}
    for at in range(start, len(g.nodes)):
        node = g.nodes[at]
        inputs = tuple(table.get(n, n) for n in node.inputs)
        outputs = tuple(table.get(n, n) for n in node.outputs)
        if (inputs, outputs) != (node.inputs, node.outputs):
            g.nodes[at] = replace(node, inputs=inputs, outputs=outputs)
    g.rename(result, name)
    return result


def _kind(g: Gradients, tensor: str, gradient: str) -> int:
    """The data type of a tensor's gradient: its own, unless it holds quantized values."""
    kind = g.elem_type(tensor)
    return kind if kind in FLOATS else g.elem_type(gradient)


def _accumulated(g: Gradients, name: str, partials: dict[str, list[str]]) -> str:
    """The gradient of a tensor: the sum of its parts, "" where none arrived."""
    parts = partials.get(name, [])
    if len(parts) > 1:
        total = f"{name}_grad"
        g.nodes.append(ir.make_node("Sum", parts, [total], f"AccumulateGrad_{total}"))
        g.shapes.set(total, _kind(g, name, parts[0]), g.shapes.dims(name))
        partials[name] = [total]
    elif parts and parts[0] != f"{name}_grad" and parts[0].startswith(f"{name}_grad_"):
        total = f"{name}_grad"  # the other readers passed no gradient back
        g.nodes.append(ir.make_node("Identity", parts, [total], f"AccumulateGrad_{total}"))
        g.shapes.set(total, _kind(g, name, parts[0]), g.shapes.dims(name))
        partials[name] = [total]
    return partials[name][0] if parts else ""


def _joined(graph: ir.Graph, g: Gradients) -> ir.Graph:
    nodes = [g.current(node) for node in graph.nodes] + g.nodes
    constants = {**graph.initializers, **g.constants}
    return replace(graph, nodes=nodes, initializers=constants)
