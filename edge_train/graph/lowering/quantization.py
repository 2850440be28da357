"""FakeQuant: values rounded to a grid as a quantized model would, and its gradient."""

from __future__ import annotations

from edge_train.graph import ir
from edge_train.graph.lowering.builder import Builder
from edge_train.graph.lowering.registry import lowers


@lowers("FakeQuant")
def fake_quant(b: Builder, node: ir.Node) -> tuple[str, str]:
    """q = round(x / scale) + zero_point: (clip(q) - zero_point) scale, and where q is in range."""
    x, scale, zero_point = node.inputs
    low, high = (b.scalar(node.attr(*item), x) for item in (("quant_min", 0), ("quant_max", 255)))
    q = b.add(b.op("Round", b.div(x, scale)), zero_point)
    y = b.mul(b.sub(b.op("Max", b.op("Min", q, high), low), zero_point), scale)
    inside = b.op("And", b.op("GreaterOrEqual", q, low), b.op("LessOrEqual", q, high))
    return y, inside


@lowers("FakeQuantGrad")
def fake_quant_grad(b: Builder, node: ir.Node) -> str:
    dy, mask = node.inputs
    return b.masked(mask, dy)
