"""Gives every node a name of its own: gradient nodes and messages are named after them."""

from __future__ import annotations

from dataclasses import replace

from edge_train.graph import ir


def name_nodes(model: ir.Model) -> ir.Model:
    """Unnamed and repeated node names become ``<name or op>``, ``…_1``, ``…_2``."""
    taken: set[str] = set()
    nodes = []
    for node in model.graph.nodes:
        stem = node.name or node.op_type
        name, count = stem, 0
        while name in taken:
            count += 1
            name = f"{stem}_{count}"
        taken.add(name)
        nodes.append(node if name == node.name else replace(node, name=name))
    return replace(model, graph=replace(model.graph, nodes=nodes))
