"""Activations: gradients of ReLU, sigmoid, tanh, GELU, softmax, dropout, and contrib forward forms.

Every formula takes dy, the gradient of the output, and gives dx (reference/ops.md, section B).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from edge_train.graph import ir
from edge_train.graph.lowering.builder import Builder
from edge_train.graph.lowering.registry import lowers


@lowers("ReluGrad")
def relu_grad(b: Builder, node: ir.Node) -> str:
    dy, x = node.inputs
    return b.masked(b.greater(x, 0.0), dy)


@lowers("LeakyReluGrad")
def leaky_relu_grad(b: Builder, node: ir.Node) -> str:
    dy, y = node.inputs
    alpha = node.attr("alpha", 0.01)
    positive = b.cast_like(b.greater(y, 0.0), dy)
    return b.mul(dy, b.add(b.mul(positive, 1.0 - alpha), alpha))


@lowers("SigmoidGrad")
def sigmoid_grad(b: Builder, node: ir.Node) -> str:
    dy, y = node.inputs
    return b.mul(dy, b.mul(y, b.sub(1.0, y)))


@lowers("TanhGrad")
def tanh_grad(b: Builder, node: ir.Node) -> str:
    dy, y = node.inputs
    return b.mul(dy, b.sub(1.0, b.mul(y, y)))


@lowers("Gelu", float_only=True)
def gelu(b: Builder, node: ir.Node) -> str:
    return b.op("Gelu", node.inputs[0])


@lowers("FastGelu")
def fast_gelu(b: Builder, node: ir.Node) -> str:
    x = b.add(*node.inputs) if node.input(1) else node.inputs[0]
    return b.op("Gelu", x, approximate="tanh")


@lowers("QuickGelu")
def quick_gelu(b: Builder, node: ir.Node) -> str:
    x = node.inputs[0]
    return b.mul(x, b.op("Sigmoid", b.mul(x, node.attr("alpha", 1.702))))


@lowers("GeluGrad", float_only=True)
def gelu_grad(b: Builder, node: ir.Node) -> str:
    """dy * (Phi(x) + x phi(x)) with the normal distribution's Phi and density phi."""
    dy, x = node.inputs
    return _gelu_slope(b, dy, x)


@lowers("BiasGelu", float_only=True)
def bias_gelu(b: Builder, node: ir.Node) -> str:
    return b.op("Gelu", b.add(*node.inputs))


@lowers("BiasGeluGrad_dX", float_only=True)
def bias_gelu_grad(b: Builder, node: ir.Node) -> str:
    dy, x, bias = node.inputs
    return _gelu_slope(b, dy, b.add(x, bias))


def _gelu_slope(b: Builder, dy: str, x: str) -> str:
    cdf = b.mul(b.add(b.op("Erf", b.mul(x, math.sqrt(0.5))), 1.0), 0.5)
    density = b.mul(b.exp(b.mul(b.mul(x, x), -0.5)), 1.0 / math.sqrt(2.0 * math.pi))
    return b.mul(dy, b.add(cdf, b.mul(x, density)))


@lowers("FastGeluGrad")
def fast_gelu_grad(b: Builder, node: ir.Node) -> str:
    """u = k (x + c x^3), t = tanh u: dy (1/2 (1+t) + 1/2 x (1-t^2) k (1 + 3 c x^2))."""
    dy, x = node.inputs[:2]
    return _fast_gelu_slope(b, dy, b.add(x, node.input(2)) if node.input(2) else x)


@lowers("BiasFastGeluGrad_dX")
def bias_fast_gelu_grad(b: Builder, node: ir.Node) -> str:
    dy, x, bias = node.inputs
    return _fast_gelu_slope(b, dy, b.add(x, bias))


def _fast_gelu_slope(b: Builder, dy: str, x: str) -> str:
    k, c = math.sqrt(2.0 / math.pi), 0.044715
    square = b.mul(x, x)
    t = b.op("Tanh", b.mul(x, b.add(b.mul(square, k * c), k)))
    slope = b.add(b.mul(square, 3.0 * k * c), k)
    tail = b.mul(b.mul(x, slope), b.sub(1.0, b.mul(t, t)))
    return b.mul(dy, b.mul(b.add(b.add(t, 1.0), tail), 0.5))


@lowers("QuickGeluGrad")
def quick_gelu_grad(b: Builder, node: ir.Node) -> str:
    """s = sigmoid(alpha x): dy (s + alpha x s (1-s)), written dy s (1 + alpha x (1-s))."""
    dy, x = node.inputs
    scaled = b.mul(x, node.attr("alpha", 1.702))
    s = b.op("Sigmoid", scaled)
    return b.mul(dy, b.mul(s, b.add(b.mul(scaled, b.sub(1.0, s)), 1.0)))


@lowers("SoftmaxGrad_13")
def softmax_grad(b: Builder, node: ir.Node) -> str:
    dy, y = node.inputs
    return softmax_slope(b, dy, y, [node.attr("axis", -1)])


@lowers("SoftmaxGrad")
def legacy_softmax_grad(b: Builder, node: ir.Node) -> str:
    """Opset < 13: one softmax over all axes from ``axis`` on."""
    dy, y = node.inputs
    return softmax_slope(b, dy, y, _axes_from(b, node))


def softmax_slope(b: Builder, dy: str, y: str, axes: Sequence[int]) -> str:
    """y (dy - sum of dy y over the softmax's axes)."""
    return b.mul(y, b.sub(dy, b.sum(b.mul(dy, y), axes)))


@lowers("LogSoftmaxGrad_13")
def log_softmax_grad(b: Builder, node: ir.Node) -> str:
    dy, y = node.inputs
    return _log_softmax_slope(b, dy, y, [node.attr("axis", -1)])


@lowers("LogSoftmaxGrad")
def legacy_log_softmax_grad(b: Builder, node: ir.Node) -> str:
    dy, y = node.inputs
    return _log_softmax_slope(b, dy, y, _axes_from(b, node))


def _log_softmax_slope(b: Builder, dy: str, y: str, axes: Sequence[int]) -> str:
    return b.sub(dy, b.mul(b.exp(y), b.sum(dy, axes)))


def _axes_from(b: Builder, node: ir.Node) -> range:
    rank, axis = b.rank(node.inputs[1]), node.attr("axis", 1)
    return range(axis + rank if axis < 0 else axis, rank)


@lowers("DropoutGrad")
def dropout_grad(b: Builder, node: ir.Node) -> str:
    dy, mask = node.inputs[:2]
    return dropped(b, dy, mask, node.input(2), node.input(3))


def dropped(b: Builder, dy: str, mask: str, ratio: str, mode: str) -> str:
    """mask ? dy / (1 - ratio) : 0; in inference mode the mask is all true and nothing is scaled."""
    return b.mul(b.masked(mask, dy), kept_scale(b, dy, ratio, mode))


def kept_scale(b: Builder, dy: str, ratio: str, mode: str) -> str:
    """What a dropout multiplies the elements with that it keeps."""
    ratio = ratio or b.scalar(0.5, dy)
    scale = b.div(1.0, b.sub(1.0, b.cast_like(ratio, dy)))
    if mode:
        training = b.constant_value(mode)
        if training is None:
            scale = b.where(mode, scale, 1.0)
        elif not np.all(training):
            scale = b.scalar(1.0, dy)
    return scale
