"""Puts Dropout and BatchNormalization into training mode."""

from __future__ import annotations

from dataclasses import replace

from edge_train.graph import ir


def enter_training_mode(model: ir.Model) -> ir.Model:
    """BatchNormalization becomes com.microsoft BatchNormInternal, which moves its statistics.

    Also where it stood in inference mode, and in frozen parts: as onnxruntime-training does.
    """
    nodes = [
        _batch_norm(node) if node.op_type == "BatchNormalization" else node
        for node in model.graph.nodes
    ]
    return replace(model, graph=replace(model.graph, nodes=nodes))


def _batch_norm(node: ir.Node) -> ir.Node:
    y, name = node.outputs[0], node.name
    outputs = (y, *(f"{name}_{what}" for what in _STATISTICS))
    return ir.make_node(
        "BatchNormInternal",
        node.inputs,
        outputs,
        f"{name}_BatchNormInternal",
        ir.MICROSOFT,
        epsilon=node.attr("epsilon", 1e-5),
        momentum=node.attr("momentum", 0.9),
        training_mode=1,
    )


_STATISTICS = ("running_mean", "running_var", "saved_mean", "saved_inv_std")
