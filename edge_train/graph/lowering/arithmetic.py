"""Arithmetic: scaling, division, matrix products with transposes, and undoing a broadcast."""

from __future__ import annotations

import numpy as np

from edge_train import dtypes
from edge_train.graph import ir
from edge_train.graph.broadcast import repeated_axes, unbroadcast
from edge_train.graph.lowering.builder import Builder
from edge_train.graph.lowering.registry import lowers


@lowers("Scale")
def scale(b: Builder, node: ir.Node) -> str:
    x, factor = node.inputs
    factor = b.cast_like(factor, x)
    return b.div(x, factor) if node.attr("scale_down", 0) else b.mul(x, factor)


@lowers("ReduceSumTraining")
def reduce_sum_training(b: Builder, node: ir.Node) -> str:
    data, axes = node.inputs
    keepdims, noop = node.attr("keepdims", 1), node.attr("noop_with_empty_axes", 0)
    return b.op("ReduceSum", data, axes, keepdims=keepdims, noop_with_empty_axes=noop)


@lowers("FusedMatMul")
def fused_matmul(b: Builder, node: ir.Node) -> str:
    """alpha op(A) op(B); onnxruntime folds the Transposes into its own matrix product again."""
    flags = [
        (bool(node.attr(f"trans{side}", 0)), bool(node.attr(f"transBatch{side}", 0)))
        for side in "AB"
    ]
    turned = any(rows for rows, _ in flags) and all(b.rank(name) > 1 for name in node.inputs)
    if turned and b.elem_type(node.inputs[0]) == dtypes.DOUBLE:
        # up to 1.20 onnxruntime folds Transposes into a product that it lacks in double
        plain = [
            _turned(b, x, False, batch) for x, (_, batch) in zip(node.inputs, flags, strict=True)
        ]
        product = b.op("Einsum", *plain, equation=_equation(b, plain, flags[0][0], flags[1][0]))
    else:
        operands = [_turned(b, x, *flag) for x, flag in zip(node.inputs, flags, strict=True)]
        product = b.op("MatMul", *operands)
    alpha = node.attr("alpha", 1.0)
    return product if alpha == 1.0 else b.mul(product, alpha)


def _equation(b: Builder, operands: list[str], left: bool, right: bool) -> str:
    """The product of two stacks of matrices for Einsum, each one transposed or not."""
    stacks = ["abcdefgh"[10 - b.rank(name) :] for name in operands]
    terms = f"{stacks[0]}{'km' if left else 'mk'},{stacks[1]}{'nk' if right else 'kn'}"
    return f"{terms}->{max(stacks, key=len)}mn"


def _turned(b: Builder, x: str, rows: bool, batch: bool) -> str:
    """``x`` as (batch..., rows, columns): from (rows, batch..., columns), last two swapped."""
    rank = b.rank(x)
    if rank < 2:
        return x
    order = [*range(1, rank - 1), 0, rank - 1] if batch else list(range(rank))
    if rows:
        order[-2:] = order[:-3:-1]
    return b.transpose(x, *order)


@lowers("DivGrad")
def div_grad(b: Builder, node: ir.Node) -> tuple[str, str]:
    """dA = dY / B and dB = -dY A / B^2, each summed over what broadcasting repeated."""
    dy, numerator, divisor = node.inputs
    quotient = b.div(dy, divisor)
    d_numerator = d_divisor = ""
    if node.output(0):
        d_numerator = unbroadcast(b, quotient, dy, numerator)
    if node.output(1):
        slope = b.neg(b.mul(quotient, b.div(numerator, divisor)))
        d_divisor = unbroadcast(b, slope, dy, divisor)
    return d_numerator, d_divisor


@lowers("BroadcastGradientArgs")
def broadcast_gradient_args(b: Builder, node: ir.Node) -> tuple[str, ...]:
    """The axes along which each of two shapes was repeated, last axis first."""
    a, c = node.inputs
    size_a, size_c = (
        b.op("Size", a, elem_type=dtypes.INT64),
        b.op("Size", c, elem_type=dtypes.INT64),
    )
    rank = b.op("Max", size_a, size_c)
    a, c = (_grown(b, shape, b.sub(rank, size)) for shape, size in ((a, size_a), (c, size_c)))
    pairs = zip(node.outputs, ((a, c), (c, a)), strict=False)
    return tuple(_reversed(b, repeated_axes(b, *pair)) if output else "" for output, pair in pairs)


def _grown(b: Builder, shape: str, missing: str) -> str:
    one = ir.Tensor.of("value", np.ones(1, np.int64))
    count = b.op("Reshape", missing, b.ints(1))
    return b.op("Concat", b.op("ConstantOfShape", count, value=one), shape, axis=0)


def _reversed(b: Builder, axes: str) -> str:
    flat = b.op("Reshape", axes, b.ints(-1))
    lowest = np.iinfo(np.int64).min
    return b.op("Slice", flat, b.ints(-1), b.ints(lowest), b.ints(0), b.ints(-1))
