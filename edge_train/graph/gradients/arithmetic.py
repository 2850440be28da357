"""Arithmetic element by element: dy is the gradient of the output, the driver undoes broadcasts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edge_train import dtypes
from edge_train.graph import ir
from edge_train.graph.gradients.builder import Gradients
from edge_train.graph.gradients.registry import gradient, no_gradient

no_gradient(
    "And", "Or", "Xor", "Not", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual",
    "IsInf", "IsNaN", "Sign", "Ceil", "Floor",
    "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot",
)  # fmt: skip


@gradient("Identity", quantized=True)
def identity(g: Gradients, node: ir.Node, dy: str) -> str:
    return dy


@gradient("Add", broadcasts=True)
def add(g: Gradients, node: ir.Node, dy: str) -> Sequence[str]:
    return dy, dy


@gradient("Sub", broadcasts=True)
def sub(g: Gradients, node: ir.Node, dy: str) -> Sequence[str | None]:
    return dy, g.neg(dy) if g.wants(1) else None


@gradient("Mul", broadcasts=True)
def mul(g: Gradients, node: ir.Node, dy: str) -> Sequence[str | None]:
    a, b = node.inputs
    return g.mul(dy, b) if g.wants(0) else None, g.mul(dy, a) if g.wants(1) else None


@gradient("Div", broadcasts=True)
def div(g: Gradients, node: ir.Node, dy: str) -> Sequence[str | None]:
    """d(a/b) = dy/b and -dy a/b^2; the second as -(dy/b) y, which reuses the quotient."""
    quotient = g.div(dy, node.inputs[1])
    return quotient, g.neg(g.mul(quotient, node.outputs[0])) if g.wants(1) else None


@gradient("Neg")
def neg(g: Gradients, node: ir.Node, dy: str) -> str:
    return g.neg(dy)


@gradient("Sum", broadcasts=True)
def sum_(g: Gradients, node: ir.Node, dy: str) -> Sequence[str]:
    return [dy] * len(node.inputs)


@gradient("Pow", broadcasts=True)
def pow_(g: Gradients, node: ir.Node, dy: str) -> Sequence[str | None]:
    """e x^(e-1) dy, and y log(x) dy for the exponent (0 at x = 0)."""
    x, e = node.inputs
    dx = de = None
    if g.wants(0):
        dx = g.mul(_power_slope(g, x, e), dy)
    if g.wants(1):
        logarithm = g.op("Log", g.where(g.equal(x, 0.0), 1.0, x))
        de = g.cast_like(g.mul(dy, g.mul(node.outputs[0], logarithm)), e)
    return dx, de


def _power_slope(g: Gradients, x: str, e: str) -> str:
    value = g.constant_value(e)
    if value is not None and value.size == 1 and value.item() == 2:
        return g.mul(x, 2.0)
    e = g.cast_like(e, x)
    slope = g.mul(g.op("Pow", x, g.sub(e, 1.0)), e)
    if value is not None and np.all(value != 0):
        return slope
    return g.where(g.equal(e, 0.0), 0.0, slope)  # 0 x^-1 is NaN at 0


@gradient("Mod", broadcasts=True)
def mod(g: Gradients, node: ir.Node, dy: str) -> Sequence[str | None]:
    """y = a - b trunc(a / b), so the slope in b is (y - a) / b."""
    a, b = node.inputs
    return dy, g.mul(dy, g.div(g.sub(node.outputs[0], a), b)) if g.wants(1) else None


@gradient("Min", "Max", broadcasts=True)
def extreme(g: Gradients, node: ir.Node, dy: str) -> Sequence[str | None]:
    """Inputs that tie share dy equally."""
    if len(node.inputs) == 1:
        return [dy]
    masks = [g.cast_like(g.equal(name, node.outputs[0]), dy) for name in node.inputs]
    share = g.div(dy, g.op("Sum", *masks))
    return [g.mul(share, mask) if g.wants(i) else None for i, mask in enumerate(masks)]


@gradient("Mean", broadcasts=True)
def mean(g: Gradients, node: ir.Node, dy: str) -> Sequence[str | None]:
    count = len(node.inputs)
    return [g.div(dy, float(count)) if g.wants(i) else None for i in range(count)]


@gradient("Clip")
def clip(g: Gradients, node: ir.Node, dy: str) -> Sequence[str | None]:
    """dy where x lies between the bounds, which count as inside; the rest is the bounds'."""
    x, low, high = node.inputs[0], node.input(1), node.input(2)
    inside = [g.op("GreaterOrEqual", x, low, elem_type=dtypes.BOOL)] if low else []
    inside += [g.op("LessOrEqual", x, high, elem_type=dtypes.BOOL)] if high else []
    dx = dy
    if inside:
        mask = inside[0] if len(inside) == 1 else g.op("And", *inside)
        dx = g.mul(dy, g.cast_like(mask, dy))
    outside = [g.op("Less", x, low, elem_type=dtypes.BOOL) if g.wants(1) else ""]
    outside += [g.greater(x, high) if g.wants(2) else ""]
    return dx, *(_total(g, dy, mask) if mask else None for mask in outside)


def _total(g: Gradients, dy: str, mask: str) -> str:
    return g.op("ReduceSum", g.masked(mask, dy), keepdims=0)


@gradient("Where", cut=(0,), broadcasts=True)
def where(g: Gradients, node: ir.Node, dy: str) -> Sequence[str | None]:
    condition = node.inputs[0]
    yes = g.where(condition, dy, 0.0) if g.wants(1) else None
    return None, yes, g.where(condition, 0.0, dy) if g.wants(2) else None


@gradient("Cast", "CastLike", cut=(1,))
def cast(g: Gradients, node: ir.Node, dy: str) -> str:
    return g.cast_like(dy, node.inputs[0])
