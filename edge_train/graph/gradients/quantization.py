"""Quantization, straight-through: rounding counts as the identity, clipping cuts the gradient.

The gradient of a quantized tensor is that of the real values it stands for, so what only moves data
may lie between QuantizeLinear and DequantizeLinear. Scales and zero points get none: they belong to
the calibration.
"""

from __future__ import annotations

import numpy as np

from edge_train import dtypes
from edge_train.graph import ir
from edge_train.graph.formula import Refuse
from edge_train.graph.gradients.builder import Gradients
from edge_train.graph.gradients.registry import gradient

_WHOLE = (dtypes.INT8, dtypes.UINT8, dtypes.INT16, dtypes.UINT16)
_UINT4, _INT4 = 21, 22


@gradient("QuantizeLinear", cut=(1, 2), quantized=True)
@gradient("QuantizeLinear", domain=ir.MICROSOFT, cut=(1, 2), quantized=True)
def quantize(g: Gradients, node: ir.Node, dy: str) -> str:
    """dY where round(x / scale) + zero point lies in the range of the type."""
    x = node.inputs[0]
    low, high = _range(g.elem_type(node.outputs[0]))
    scale = g.cast_like(_along_axis(g, node, node.inputs[1]), x)
    steps = g.op("Round", g.div(x, scale))
    if node.input(2):
        steps = g.add(steps, g.cast_like(_along_axis(g, node, node.inputs[2]), x))
    above = g.op("GreaterOrEqual", steps, g.scalar(low, x), elem_type=dtypes.BOOL)
    below = g.op("LessOrEqual", steps, g.scalar(high, x), elem_type=dtypes.BOOL)
    return g.masked(g.op("And", above, below), dy)


def _range(kind: int) -> tuple[int, int]:
    if kind in _WHOLE:
        info = np.iinfo(dtypes.NUMPY[kind])
        return int(info.min), int(info.max)
    if kind in (_UINT4, _INT4):
        return (0, 15) if kind == _UINT4 else (-8, 7)
    raise Refuse(f"it quantizes to {dtypes.name_of(kind)}; integers of 4 to 16 bits are known")


def _along_axis(g: Gradients, node: ir.Node, values: str) -> str:
    """A number, or one for each slice along ``axis``, in a shape that repeats over x."""
    x = node.inputs[0]
    if g.dims(values) in ((), (1,)):
        return values
    if node.attr("block_size", 0):
        raise Refuse("it quantizes in blocks; use one scale a tensor or a channel")
    rank = g.rank(x)
    axis = node.attr("axis", 1) % rank
    return g.reshape(values, *(1,) * axis, -1, *(1,) * (rank - axis - 1))


@gradient("DequantizeLinear", cut=(1, 2), quantized=True)
@gradient("DequantizeLinear", domain=ir.MICROSOFT, cut=(1, 2), quantized=True)
def dequantize(g: Gradients, node: ir.Node, dy: str) -> str:
    return dy


@gradient("FakeQuant", domain=ir.MICROSOFT, cut=(1, 2))
def fake_quant(g: Gradients, node: ir.Node, dy: str, d_mask: str = "") -> str:
    mask = g.extra_output(node, 1, "mask", dtypes.BOOL)
    return g.op("FakeQuantGrad", dy, mask, domain=ir.MICROSOFT)
