"""Removes nodes that change nothing, do what another node has done, or that nothing reads."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from edge_train.graph import ir
from edge_train.graph.passes import live_nodes, outer_reads, reading
from edge_train.graph.shapes import Shapes

RANDOM = frozenset(
    (
        *("Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike"),
        *("RandomUniform", "RandomUniformLike"),
    )
)


def clean(model: ir.Model, keep: Collection[str]) -> ir.Model:
    """The model without no-ops, duplicated and dead nodes; tensors of ``keep`` stay."""
    graph = model.graph
    ends = {value.name for value in graph.outputs} | set(keep)
    shapes = Shapes.of(graph)
    instead: dict[str, str] = {}
    seen: dict[object, ir.Node] = {}
    nodes = []
    for node in graph.nodes:
        node = reading(node, instead) if instead else node
        twin = seen.setdefault(_key(node), node) if _repeatable(node) else node
        if ends.intersection(node.outputs):
            nodes.append(node)
        elif _changes_nothing(node, shapes):
            instead[node.outputs[0]] = node.inputs[0]
        elif twin is not node:
            instead.update(zip(node.outputs, twin.outputs, strict=True))
        else:
            nodes.append(node)
    nodes = live_nodes(nodes, ends)
    used = ends.union(*(outer_reads(node) for node in nodes))
    used.update(value.name for value in graph.inputs)
    tensors = {n: t for n, t in graph.initializers.items() if n in used}
    return replace(model, graph=replace(graph, nodes=nodes, initializers=tensors))


def _changes_nothing(node: ir.Node, shapes: Shapes) -> bool:
    if node.domain not in ir.ONNX_DOMAINS:
        return False
    if node.op_type == "Identity":
        return True
    if node.op_type == "Cast":
        return bool(node.attr("to") == shapes.elem_type(node.input(0)))
    if node.op_type == "Transpose":
        perm = node.attr("perm")
        return perm is not None and list(perm) == sorted(perm)
    return node.op_type in ("Concat", "Sum", "Mean", "Max", "Min") and len(node.inputs) == 1


def _repeatable(node: ir.Node) -> bool:
    """Whether two such nodes give the same: nothing random, nothing unknown."""
    known = node.domain in (*ir.ONNX_DOMAINS, ir.MICROSOFT)
    random = node.op_type in RANDOM or "Dropout" in node.op_type  # com.microsoft has several
    return known and not random and not any(True for _ in ir.subgraphs(node))


def _key(node: ir.Node) -> object:
    attributes = tuple(sorted((name, repr(a.value)) for name, a in node.attributes.items()))
    outputs = tuple(bool(name) for name in node.outputs)
    return node.op_type, node.domain, node.inputs, outputs, attributes
