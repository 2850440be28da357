"""Functions of one number: powers, logarithms, trigonometric and hyperbolic functions."""

from __future__ import annotations

import math

from edge_train.graph import ir
from edge_train.graph.gradients.builder import Gradients
from edge_train.graph.gradients.registry import gradient, refuse

refuse(
    "Round",
    "its slope is 0 wherever it has one; a QuantizeLinear/DequantizeLinear pair rounds too and "
    "trains straight through",
)


@gradient("Abs")
def abs_(g: Gradients, node: ir.Node, dy: str) -> str:
    return g.mul(dy, g.op("Sign", node.inputs[0]))


@gradient("Sqrt")
def sqrt(g: Gradients, node: ir.Node, dy: str) -> str:
    return g.mul(dy, g.div(0.5, node.outputs[0]))


@gradient("Reciprocal")
def reciprocal(g: Gradients, node: ir.Node, dy: str) -> str:
    y = node.outputs[0]
    return g.mul(dy, g.neg(g.mul(y, y)))


@gradient("Exp")
def exp(g: Gradients, node: ir.Node, dy: str) -> str:
    return g.mul(dy, node.outputs[0])


@gradient("Log")
def log(g: Gradients, node: ir.Node, dy: str) -> str:
    return g.div(dy, node.inputs[0])


@gradient("Erf")
def erf(g: Gradients, node: ir.Node, dy: str) -> str:
    """2 / sqrt(pi) exp(-x^2) dy."""
    x = node.inputs[0]
    bell = g.exp(g.neg(g.mul(x, x)))
    return g.mul(dy, g.mul(bell, 2.0 / math.sqrt(math.pi)))


@gradient("Sin")
def sin(g: Gradients, node: ir.Node, dy: str) -> str:
    return g.mul(dy, g.op("Cos", node.inputs[0]))


@gradient("Cos")
def cos(g: Gradients, node: ir.Node, dy: str) -> str:
    return g.mul(dy, g.neg(g.op("Sin", node.inputs[0])))


@gradient("Tan")
def tan(g: Gradients, node: ir.Node, dy: str) -> str:
    """(1 + y^2) dy."""
    y = node.outputs[0]
    return g.mul(dy, g.add(g.mul(y, y), 1.0))


@gradient("Asin")
def asin(g: Gradients, node: ir.Node, dy: str) -> str:
    return g.div(dy, _cosine_of_arcsine(g, node.inputs[0]))


@gradient("Acos")
def acos(g: Gradients, node: ir.Node, dy: str) -> str:
    return g.neg(g.div(dy, _cosine_of_arcsine(g, node.inputs[0])))


def _cosine_of_arcsine(g: Gradients, x: str) -> str:
    return g.op("Sqrt", _unit_minus_square(g, x))


def _unit_minus_square(g: Gradients, x: str) -> str:
    """1 - x^2 as (1 - x)(1 + x), which keeps its digits near 1."""
    return g.mul(g.sub(1.0, x), g.add(x, 1.0))


@gradient("Atan")
def atan(g: Gradients, node: ir.Node, dy: str) -> str:
    x = node.inputs[0]
    return g.div(dy, g.add(g.mul(x, x), 1.0))


@gradient("Sinh")
def sinh(g: Gradients, node: ir.Node, dy: str) -> str:
    """cosh(x) dy."""
    return g.mul(dy, g.op("Cosh", node.inputs[0]))


@gradient("Cosh")
def cosh(g: Gradients, node: ir.Node, dy: str) -> str:
    """sinh(x) dy."""
    return g.mul(dy, g.op("Sinh", node.inputs[0]))


@gradient("Asinh")
def asinh(g: Gradients, node: ir.Node, dy: str) -> str:
    x = node.inputs[0]
    return g.div(dy, g.op("Sqrt", g.add(g.mul(x, x), 1.0)))


@gradient("Acosh")
def acosh(g: Gradients, node: ir.Node, dy: str) -> str:
    return g.div(dy, g.op("Sqrt", g.neg(_unit_minus_square(g, node.inputs[0]))))


@gradient("Atanh")
def atanh(g: Gradients, node: ir.Node, dy: str) -> str:
    return g.div(dy, _unit_minus_square(g, node.inputs[0]))
