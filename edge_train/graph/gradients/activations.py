"""Activations: the training op that onnxruntime's gradient builder emits where there is one.

At a kink the slope is that of PyTorch.
"""

from __future__ import annotations

from collections.abc import Sequence

from edge_train.graph import ir
from edge_train.graph.broadcast import unbroadcast
from edge_train.graph.gradients.builder import Gradients
from edge_train.graph.gradients.registry import gradient, no_gradient

no_gradient("Hardmax")


@gradient("Relu")
def relu(g: Gradients, node: ir.Node, dy: str) -> str:
    return g.op("ReluGrad", dy, node.outputs[0], domain=ir.MICROSOFT)


@gradient("Sigmoid")
def sigmoid(g: Gradients, node: ir.Node, dy: str) -> str:
    return g.op("SigmoidGrad", dy, node.outputs[0], domain=ir.MICROSOFT)


@gradient("Tanh")
def tanh(g: Gradients, node: ir.Node, dy: str) -> str:
    return g.op("TanhGrad", dy, node.outputs[0], domain=ir.MICROSOFT)


@gradient("LeakyRelu")
def leaky_relu(g: Gradients, node: ir.Node, dy: str) -> str:
    """LeakyReluGrad looks at the sign of y, which is that of x unless alpha < 0."""
    alpha = node.attr("alpha", 0.01)
    if alpha >= 0:
        return g.op("LeakyReluGrad", dy, node.outputs[0], domain=ir.MICROSOFT, alpha=alpha)
    return g.mul(dy, g.where(g.greater(node.inputs[0], 0.0), g.scalar(1.0, dy), alpha))


@gradient("PRelu", broadcasts=True)
def prelu(g: Gradients, node: ir.Node, dy: str) -> Sequence[str | None]:
    x, slope = node.inputs
    dx = g.mul(dy, g.where(g.greater(x, 0.0), 1.0, slope)) if g.wants(0) else None
    return dx, g.mul(dy, g.op("Min", x, g.scalar(0.0, x))) if g.wants(1) else None


@gradient("Elu")
def elu(g: Gradients, node: ir.Node, dy: str) -> str:
    return g.mul(dy, _exponential_slope(g, node, node.attr("alpha", 1.0), 1.0))


@gradient("Selu")
def selu(g: Gradients, node: ir.Node, dy: str) -> str:
    alpha = node.attr("alpha", 1.67326319217681884765625)
    return g.mul(
        dy, _exponential_slope(g, node, alpha, node.attr("gamma", 1.05070102214813232421875))
    )


def _exponential_slope(g: Gradients, node: ir.Node, alpha: float, gamma: float) -> str:
    """y = gamma x above 0, else gamma alpha (e^x - 1), where the slope is y + gamma alpha."""
    low = g.add(node.outputs[0], gamma * alpha)
    return g.where(g.greater(node.inputs[0], 0.0), gamma, low)


@gradient("Celu")
def celu(g: Gradients, node: ir.Node, dy: str) -> str:
    """y = alpha (e^(x/alpha) - 1) below 0, with slope y / alpha + 1."""
    low = g.op("Min", node.outputs[0], g.scalar(0.0, dy))
    return g.mul(dy, g.add(g.div(low, node.attr("alpha", 1.0)), 1.0))


@gradient("Softplus")
def softplus(g: Gradients, node: ir.Node, dy: str) -> str:
    return g.mul(dy, g.op("Sigmoid", node.inputs[0]))


@gradient("Softsign")
def softsign(g: Gradients, node: ir.Node, dy: str) -> str:
    """dy / (1 + |x|)^2."""
    size = g.add(g.op("Abs", node.inputs[0]), 1.0)
    return g.div(g.div(dy, size), size)


@gradient("HardSigmoid")
def hard_sigmoid(g: Gradients, node: ir.Node, dy: str) -> str:
    """alpha dy where y is strictly between 0 and 1."""
    y = node.outputs[0]
    inside = g.op("And", g.greater(y, 0.0), g.greater(1.0, y))
    return g.mul(dy, g.mul(g.cast_like(inside, dy), node.attr("alpha", 0.2)))


@gradient("HardSwish")
def hard_swish(g: Gradients, node: ir.Node, dy: str) -> str:
    """y = x s with s = clip(x/6 + 1/2, 0, 1): s, and x/6 between the bounds."""
    x = node.inputs[0]
    s = g.op("HardSigmoid", x, alpha=1.0 / 6.0, beta=0.5)
    inner = g.masked(g.greater(3.0, g.op("Abs", x)), g.div(x, 6.0))
    return g.mul(dy, g.add(s, inner))


@gradient("Mish")
def mish(g: Gradients, node: ir.Node, dy: str) -> str:
    """y = x t with t = tanh(softplus(x)): t + x (1 - t^2) sigmoid(x)."""
    x = node.inputs[0]
    t = g.op("Tanh", g.op("Softplus", x))
    tail = g.mul(g.mul(x, g.op("Sigmoid", x)), g.sub(1.0, g.mul(t, t)))
    return g.mul(dy, g.add(t, tail))


@gradient("ThresholdedRelu")
def thresholded_relu(g: Gradients, node: ir.Node, dy: str) -> str:
    return g.masked(g.greater(node.inputs[0], node.attr("alpha", 1.0)), dy)


@gradient("Shrink")
def shrink(g: Gradients, node: ir.Node, dy: str) -> str:
    size = g.op("Abs", node.inputs[0])
    return g.masked(g.greater(size, node.attr("lambd", 0.5)), dy)


@gradient("Gelu")
def gelu(g: Gradients, node: ir.Node, dy: str) -> str:
    tanh = node.attr("approximate", "none") == "tanh"
    return g.op("FastGeluGrad" if tanh else "GeluGrad", dy, node.inputs[0], domain=ir.MICROSOFT)


@gradient("Gelu", domain=ir.MICROSOFT)
def contrib_gelu(g: Gradients, node: ir.Node, dy: str) -> str:
    return g.op("GeluGrad", dy, node.inputs[0], domain=ir.MICROSOFT)


@gradient("BiasGelu", "FastGelu", domain=ir.MICROSOFT)
def bias_gelu(g: Gradients, node: ir.Node, dy: str) -> Sequence[str | None]:
    """The gradient at x + bias, which the bias sums up."""
    x, bias = node.inputs[0], node.input(1)
    op_type = f"Bias{node.op_type.removeprefix('Bias')}Grad_dX" if bias else "FastGeluGrad"
    dx = g.op(op_type, dy, *filter(None, (x, bias)), domain=ir.MICROSOFT)
    return dx, unbroadcast(g, dx, node.outputs[0], bias) if g.wants(1) else None


@gradient("QuickGelu", domain=ir.MICROSOFT)
def quick_gelu(g: Gradients, node: ir.Node, dy: str) -> str:
    alpha = node.attr("alpha", 1.702)
    return g.op("QuickGeluGrad", dy, node.inputs[0], domain=ir.MICROSOFT, alpha=alpha)


@gradient("Softmax", "LogSoftmax")
def softmax(g: Gradients, node: ir.Node, dy: str) -> str:
    op_type = f"{node.op_type}Grad_13"
    axis = node.attr("axis", -1)
    return g.op(op_type, dy, node.outputs[0], domain=ir.MICROSOFT, axis=axis)
