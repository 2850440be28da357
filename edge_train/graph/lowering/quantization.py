"""FakeQuant, which rounds values to a grid as a quantized model would, and 4-bit weights."""

from __future__ import annotations

import numpy as np

from edge_train import dtypes
from edge_train.graph import ir
from edge_train.graph.lowering.builder import Builder, Refuse
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


_FP4 = (0.0, 0.00520833333, 0.66666667, 1.0, 0.33333333, 0.5, 0.16666667, 0.25)
#: the values of the 16 codes by quant_type (QLoRA, Dettmers et al. 2023)
_CODES = {
    0: (*_FP4, *(-value for value in _FP4)),
    1: (
        *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
        *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
        *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
        *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
    ),
}


@lowers("MatMulBnb4")
def matmul_4bit(b: Builder, node: ir.Node) -> str:
    """A W^T, or A W without ``transB`` (the gradient), for W (N, K) of 4-bit codes.

    onnxruntime takes ``transB`` 0 and computes something else, so the weight is unpacked here.
    """
    a, packed, absmax = node.inputs
    kind = node.attr("quant_type", 1)
    if kind not in _CODES:
        raise Refuse(f"quant_type is {kind}; expected 0 (FP4) or 1 (NF4)")
    size = node.attr("block_size")
    codes = b.reshape(b.cast(packed, dtypes.INT32), -1, 1)
    high = b.div(codes, 16)  # the first of two codes in a byte
    both = b.op("Concat", high, b.sub(codes, b.mul(high, 16)), axis=1)
    values = b.op("Gather", b.const(np.array(_CODES[kind], np.float32)), b.reshape(both, -1))
    count = node.attr("N") * node.attr("K")
    spare = -count % size  # the last block may be short
    if spare:
        values = b.op("Pad", values, b.ints(0, spare))
    scaled = b.mul(b.reshape(values, -1, size), b.cast(b.reshape(absmax, -1, 1), dtypes.FLOAT))
    flat = b.reshape(scaled, -1)
    if spare:
        flat = b.op("Slice", flat, b.ints(0), b.ints(count), b.ints(0))
    w = b.cast_like(b.reshape(flat, node.attr("N"), node.attr("K")), a)
    return b.op("MatMul", a, b.transpose(w, 1, 0) if node.attr("transB", 1) else w)
