"""Passes that know no op: which tensors a node reads, which nodes an output depends on, names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

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


def domains_of(nodes: Iterable[ir.Node]) -> set[str]:
    """The domains of nodes and of those in their subgraphs."""
    found: set[str] = set()
    for node in nodes:
        found.add(node.domain)
        for body in ir.subgraphs(node):
            found |= domains_of(body.nodes)
    return found


def all_names(graph: ir.Graph) -> set[str]:
    """Every tensor and node name of a graph and its subgraphs."""
    names = {value.name for value in (*graph.inputs, *graph.outputs)} | set(graph.initializers)
    for node in graph.nodes:
        names.update((node.name, *node.inputs, *node.outputs))
        for body in ir.subgraphs(node):
            names |= all_names(body)
    return names


def fresh_name(stem: str, taken: set[str]) -> str:
    """``stem``, numbered if it is taken; the name is among the taken ones from now on."""
    name, count = stem, 0
    while name in taken:
        count += 1
        name = f"{stem}_{count}"
    taken.add(name)
    return name


def with_bodies(node: ir.Node, change: Callable[[ir.Graph], ir.Graph]) -> ir.Node:
    """The node with each of its subgraphs changed."""
    table: dict[str, ir.Attribute] = {}
    for name, attribute in node.attributes.items():
        value: Any = attribute.value
        if attribute.type == ir.GRAPH:
            table[name] = replace(attribute, value=change(value))
        elif attribute.type == ir.GRAPHS:
            table[name] = replace(attribute, value=tuple([change(body) for body in value]))
    return replace(node, attributes={**node.attributes, **table}) if table else node


def reading(node: ir.Node, instead: Mapping[str, str]) -> ir.Node:
    """The node with other tensors in place of those it reads, in subgraphs too."""
    inputs = tuple([instead.get(name, name) for name in node.inputs])
    node = node if inputs == node.inputs else replace(node, inputs=inputs)
    return with_bodies(node, lambda body: _body_reading(body, instead))


def _body_reading(body: ir.Graph, instead: Mapping[str, str]) -> ir.Graph:
    own = {value.name for value in body.inputs} | set(body.initializers)
    own.update(name for node in body.nodes for name in node.outputs)
    outer = {old: new for old, new in instead.items() if old not in own}
    nodes = [reading(node, outer) for node in body.nodes]
    outputs, added = [], []
    for value in body.outputs:
        if value.name in outer:  # a body hands an outer tensor on: under its own name still
            added.append(ir.make_node("Identity", [outer[value.name]], [value.name]))
        outputs.append(value)
    return replace(body, nodes=nodes + added, outputs=outputs)


def renamed(node: ir.Node, name_of: Callable[[str], str]) -> ir.Node:
    """The node with every tensor renamed, in subgraphs too; "" stays."""
    inputs, outputs = (
        tuple([name_of(name) if name else "" for name in names])
        for names in (node.inputs, node.outputs)
    )
    node = replace(node, inputs=inputs, outputs=outputs)
    return with_bodies(node, lambda body: _renamed_body(body, name_of))


def _renamed_body(body: ir.Graph, name_of: Callable[[str], str]) -> ir.Graph:
    def values(items: Iterable[ir.Value]) -> list[ir.Value]:
        return [replace(value, name=name_of(value.name)) for value in items]

    tensors = [replace(t, name=name_of(name)) for name, t in body.initializers.items()]
    return replace(
        body,
        nodes=[renamed(node, name_of) for node in body.nodes],
        inputs=values(body.inputs),
        outputs=values(body.outputs),
        initializers={tensor.name: tensor for tensor in tensors},
        value_info={value.name: value for value in values(body.value_info.values())},
    )


def evaluation_form(model: ir.Model) -> ir.Model:
    """The model with every BatchNormalization in the one form that an evaluation can have.

    A model that was exported in training mode keeps the outputs for moved statistics in its eval
    graph. onnxruntime refuses them from opset 14 on, and before that they mean batch statistics.
    """
    graph, changed = model.graph, False
    read = {name for node in graph.nodes for name in outer_reads(node)}
    read |= {value.name for value in graph.outputs}
    nodes: list[ir.Node] = []
    for node in graph.nodes:
        extra = [name for name in node.outputs[1:] if name]
        is_norm = node.op_type == "BatchNormalization" and node.domain in ir.ONNX_DOMAINS
        if not is_norm or not extra or node.attr("training_mode", 0):
            nodes.append(node)
            continue
        changed = True
        nodes.append(replace(node, outputs=node.outputs[:1]))
        # what is not moved: the running statistics, and what a batch would be measured against
        statistics = node.inputs[3:5] * 2
        for name, source in zip(node.outputs[1:], statistics, strict=False):
            if name in read:
                nodes.append(ir.make_node("Identity", [source], [name], f"{node.name}/{name}"))
    return replace(model, graph=replace(graph, nodes=nodes)) if changed else model
