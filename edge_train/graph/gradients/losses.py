"""Losses: cross-entropy over class indices."""

from __future__ import annotations

from edge_train.graph import ir
from edge_train.graph.gradients.builder import Gradients
from edge_train.graph.gradients.registry import gradient


@gradient("SoftmaxCrossEntropyLoss", cut=(1, 2))
def cross_entropy(g: Gradients, node: ir.Node, dy: str, d_log_prob: str = "") -> str:
    log_prob = g.extra_output(node, 1, "log_prob", g.elem_type(node.inputs[0]))
    attributes = {name: node.attr(name) for name in ("reduction", "ignore_index")}
    inputs = (dy, log_prob, *node.inputs[1:])
    return g.op("SoftmaxCrossEntropyLossGrad", *inputs, domain=ir.MICROSOFT, **attributes)
