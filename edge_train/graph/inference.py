"""Takes a graph out of training mode, for evaluation: the counterpart of prepare/training_mode."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from edge_train.graph import ir
from edge_train.graph.passes import outer_reads


def enter_inference_mode(model: ir.Model, outputs: Collection[str]) -> ir.Model:
    """Dropout passes on, BatchNormalization reads its statistics; at the model's own opset.

    Outputs beyond the first that neither a node nor the caller (``outputs``) reads go: with them
    onnxruntime refuses BatchNormalization in inference mode.
    """
    graph = model.graph
    read = {name for node in graph.nodes for name in outer_reads(node)}
    read.update(outputs)
    nodes: list[ir.Node] = []
    for node in graph.nodes:
        if node.op_type == "Dropout" and node.domain in ir.ONNX_DOMAINS:
            nodes.append(_dropout(node, read))
        elif node.op_type == "BatchNormalization" and node.domain in ir.ONNX_DOMAINS:
            nodes += _batch_norm(node, read)
        else:
            nodes.append(node)
    return replace(model, graph=replace(graph, nodes=nodes))


def _dropout(node: ir.Node, read: set[str]) -> ir.Node:
    mask = node.outputs[1:] if set(node.outputs[1:]) & read else ()
    return replace(node, inputs=node.inputs[:2], outputs=(node.outputs[0], *mask))


def _batch_norm(node: ir.Node, read: set[str]) -> list[ir.Node]:
    attributes = {key: a for key, a in node.attributes.items() if key != "training_mode"}
    cut = replace(node, outputs=node.outputs[:1], attributes=attributes)
    kept = [  # new statistics that somebody reads: in inference they are the old ones
        ir.make_node("Identity", [node.inputs[3 + place % 2]], [name], f"{name}_kept")
        for place, name in enumerate(node.outputs[1:])
        if name in read
    ]
    return [cut, *kept]
