"""Passes that know no op: which tensors a node reads, and which nodes an output depends on."""

from __future__ import annotations

from collections.abc import Iterable

from edge_train.graph import ir


def outer_reads(node: ir.Node) -> set[str]:
    """Every outer tensor a node reads, subgraphs included (inner names do no harm here)."""
    names = {name for name in node.inputs if name}
    for graph in ir.subgraphs(node):
        names.update(value.name for value in graph.outputs)
        for inner in graph.nodes:
            names |= outer_reads(inner)
    return names


def live_nodes(nodes: list[ir.Node], wanted: Iterable[str]) -> list[ir.Node]:
    """The nodes that some wanted tensor depends on, in their order."""
    needed, kept = set(wanted), []
    for node in reversed(nodes):
        if needed.intersection(filter(None, node.outputs)):
            kept.append(node)
            needed |= outer_reads(node)
    return kept[::-1]
