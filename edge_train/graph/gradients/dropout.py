"""Dropout, which the training graph always has in training mode (prepare/training_mode.py)."""

from __future__ import annotations

from edge_train import dtypes
from edge_train.graph import ir
from edge_train.graph.gradients.builder import Gradients
from edge_train.graph.gradients.registry import gradient


@gradient("Dropout", cut=(1, 2))
def dropout(g: Gradients, node: ir.Node, dy: str, d_mask: str = "") -> str:
    mask = g.extra_output(node, 1, "mask", dtypes.BOOL)
    return g.op("DropoutGrad", dy, mask, *node.inputs[1:], domain=ir.MICROSOFT)
