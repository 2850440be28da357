"""GELU in its forms, and the gradients of activations and softmax: one pass over memory each."""

from __future__ import annotations

from edge_train.graph import ir
from edge_train.graph.lowering.builder import Builder
from edge_train.graph.lowering.registry import fuses

_KERNELS = {
    "Gelu": "Gelu",
    "BiasGelu": "Gelu",
    "FastGelu": "FastGelu",
    "QuickGelu": "QuickGelu",
    "GeluGrad": "GeluGrad",
    "BiasGeluGrad_dX": "GeluGrad",
    "FastGeluGrad": "FastGeluGrad",
    "BiasFastGeluGrad_dX": "FastGeluGrad",
    "QuickGeluGrad": "QuickGeluGrad",
}


@fuses("Gelu", domain="")
def stock_gelu(b: Builder, node: ir.Node) -> tuple[str, ...]:
    x = node.inputs[0]
    tanh = node.attr("approximate", "none") == "tanh"
    return b.native("FastGelu" if tanh else "Gelu", x, like=(x,))


@fuses("Gelu", "BiasGelu", "FastGelu", "QuickGelu")
def gelu(b: Builder, node: ir.Node) -> tuple[str, ...] | None:
    x, bias = node.inputs[0], node.input(1)
    return _curve(b, node, x, bias, (x,))


@fuses("GeluGrad", "FastGeluGrad", "QuickGeluGrad", "BiasGeluGrad_dX", "BiasFastGeluGrad_dX")
def gelu_grad(b: Builder, node: ir.Node) -> tuple[str, ...] | None:
    dy, x = node.inputs[:2]
    return _curve(b, node, x, node.input(2), (dy, x))


def _curve(
    b: Builder, node: ir.Node, x: str, bias: str, inputs: tuple[str, ...]
) -> tuple[str, ...] | None:
    """The kernel of a GELU; None where the bias does not lie along the last axis."""
    if bias and b.shapes.rank(bias) != 1:
        return None
    attributes = {}
    if node.op_type.startswith("Quick"):
        attributes["alpha"] = node.attr("alpha", 1.702)
    inputs = (*inputs, bias) if bias else inputs
    return b.native(_KERNELS[node.op_type], *inputs, like=(x,), **attributes)


@fuses("ReluGrad", "SigmoidGrad", "TanhGrad", "LeakyReluGrad")
def slope_of_output(b: Builder, node: ir.Node) -> tuple[str, ...]:
    dy, y = node.inputs
    attributes = {}
    if node.op_type == "LeakyReluGrad":
        attributes["alpha"] = node.attr("alpha", 0.01)
    return b.native(node.op_type, dy, y, like=(y,), **attributes)


@fuses("SoftmaxGrad_13", "LogSoftmaxGrad_13")
def softmax_grad(b: Builder, node: ir.Node) -> tuple[str, ...] | None:
    rank = b.shapes.rank(node.inputs[1])
    if rank is None or node.attr("axis", -1) not in (-1, rank - 1):
        return None
    return _softmax(b, node, 1)


@fuses("SoftmaxGrad", "LogSoftmaxGrad")
def legacy_softmax_grad(b: Builder, node: ir.Node) -> tuple[str, ...] | None:
    """Opset < 13: one softmax over all axes from ``axis`` on."""
    rank, axis = b.shapes.rank(node.inputs[1]), node.attr("axis", 1)
    if rank is None:
        return None
    axes = -axis if axis < 0 else rank - axis
    return _softmax(b, node, axes) if axes > 0 else None


def _softmax(b: Builder, node: ir.Node, axes: int) -> tuple[str, ...]:
    dy, y = node.inputs
    name = node.op_type.removesuffix("_13")
    return b.native(name, dy, y, like=(y,), axes=axes)
