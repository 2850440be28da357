"""Arithmetic element by element: dy is the gradient of the output, the driver undoes broadcasts."""

from __future__ import annotations

from collections.abc import Sequence

from edge_train.graph import ir
from edge_train.graph.gradients.builder import Gradients
from edge_train.graph.gradients.registry import gradient, no_gradient

no_gradient(
    "And", "Or", "Xor", "Not", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual",
    "IsInf", "IsNaN", "Sign", "Ceil", "Floor",
    "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot",
)  # fmt: skip


@gradient("Identity")
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
