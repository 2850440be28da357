"""Puts Dropout and BatchNormalization into training mode."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from edge_train.graph import ir

_STATISTICS = ("running_mean", "running_var", "saved_mean", "saved_inv_std")


def enter_training_mode(model: ir.Model) -> ir.Model:
    """Dropout drops; BatchNormalization becomes com.microsoft BatchNormInternal, which moves its
    statistics.

    Also where they stood in inference mode, and in frozen parts: as onnxruntime-training does.
    A Dropout whose constant ratio is 0 becomes an Identity.
    """
    graph = model.graph
    added: dict[str, ir.Tensor] = {}
    nodes = []
    for node in graph.nodes:
        if node.op_type == "BatchNormalization":
            node = _batch_norm(node)
        elif node.op_type == "Dropout":
            node = _dropout(node, graph, added)
        nodes.append(node)
    initializers = {**graph.initializers, **added}
    return replace(model, graph=replace(graph, nodes=nodes, initializers=initializers))


def _batch_norm(node: ir.Node) -> ir.Node:
    name = node.name
    made = (node.output(i) or f"{name}_{what}" for i, what in enumerate(_STATISTICS, 1))
    return ir.make_node(
        "BatchNormInternal",
        node.inputs,
        (node.outputs[0], *made),
        f"{name}_BatchNormInternal",
        ir.MICROSOFT,
        epsilon=node.attr("epsilon", 1e-5),
        momentum=node.attr("momentum", 0.9),
        training_mode=1,
    )


def _dropout(node: ir.Node, graph: ir.Graph, added: dict[str, ir.Tensor]) -> ir.Node:
    ratio = node.input(1)
    known = graph.initializers.get(ratio)
    zero = known is not None and known.raw is not None and not known.array().any()
    if zero and not node.output(1):
        return replace(node, op_type="Identity", inputs=node.inputs[:1], attributes={})
    if not ratio:
        ratio = f"{node.name}_ratio"
        added[ratio] = ir.Tensor.of(ratio, np.array(0.5, np.float32))
    mode = f"{node.name}_training_mode"
    added[mode] = ir.Tensor.of(mode, np.array(True))
    return replace(node, inputs=(node.inputs[0], ratio, mode))
