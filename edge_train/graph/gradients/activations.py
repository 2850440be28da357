"""Activations: the training op that onnxruntime's gradient builder emits where there is one."""

from __future__ import annotations

from edge_train.graph import ir
from edge_train.graph.gradients.builder import Gradients
from edge_train.graph.gradients.registry import gradient


@gradient("Relu")
def relu(g: Gradients, node: ir.Node, dy: str) -> str:
    return g.op("ReluGrad", dy, node.outputs[0], domain=ir.MICROSOFT)


@gradient("Sigmoid")
def sigmoid(g: Gradients, node: ir.Node, dy: str) -> str:
    return g.op("SigmoidGrad", dy, node.outputs[0], domain=ir.MICROSOFT)


@gradient("Tanh")
def tanh(g: Gradients, node: ir.Node, dy: str) -> str:
    return g.op("TanhGrad", dy, node.outputs[0], domain=ir.MICROSOFT)
