"""Gradients of layer and RMS normalisation: all three in one pass over memory."""

from __future__ import annotations

from edge_train.graph import ir
from edge_train.graph.lowering.builder import Builder
from edge_train.graph.lowering.registry import fuses


@fuses("LayerNormalizationGrad")
def layer_norm_grad(b: Builder, node: ir.Node) -> tuple[str, ...]:
    return _gradients(b, node, 3)


@fuses("SimplifiedLayerNormalizationGrad")
def rms_norm_grad(b: Builder, node: ir.Node) -> tuple[str, ...]:
    return _gradients(b, node, 2)


def _gradients(b: Builder, node: ir.Node, count: int) -> tuple[str, ...]:
    x, scale = node.inputs[1:3]
    wanted = [b.is_read(b.node.output(i)) for i in range(count)]
    return b.native_some(node.op_type, node.inputs, (x, scale, scale)[:count], wanted)
