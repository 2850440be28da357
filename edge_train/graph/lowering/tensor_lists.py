"""Tensor lists: norms, tests and scales over several tensors, barriers, and views into a buffer."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from edge_train import dtypes
from edge_train.graph import ir
from edge_train.graph.lowering.builder import Builder
from edge_train.graph.lowering.registry import lowers


@lowers("ReduceAllL2")
def reduce_all_l2(b: Builder, node: ir.Node) -> str:
    """The 2-norm of all elements of all tensors."""
    parts = [b.op("ReduceSumSquare", x, keepdims=0) for x in node.inputs]
    return b.op("Sqrt", b.op("Sum", *(b.cast_like(part, parts[0]) for part in parts)))


@lowers("IsFinite")
def is_finite(b: Builder, node: ir.Node) -> str:
    return b.op("Not", _either(b, _infinite(b, node.inputs[0]), _nan(b, node.inputs[0])))


@lowers("IsAllFinite")
def is_all_finite(b: Builder, node: ir.Node) -> str:
    """Whether no element of any tensor is infinite or NaN, or only one of the two is asked for."""
    tests: list[Callable[[Builder, str], str]] = []
    if not node.attr("isnan_only", 0):
        tests.append(_infinite)
    if not node.attr("isinf_only", 0):
        tests.append(_nan)
    found = [_any(b, test(b, x)) for x in node.inputs for test in tests]
    if not found:
        return b.const(np.array(True))
    result = found[0]
    for other in found[1:]:
        result = _either(b, result, other)
    return b.op("Not", result)


def _infinite(b: Builder, x: str) -> str:
    return b.op("IsInf", x, elem_type=dtypes.BOOL)


def _nan(b: Builder, x: str) -> str:
    return b.op("IsNaN", x, elem_type=dtypes.BOOL)


def _either(b: Builder, left: str, right: str) -> str:
    return b.op("Or", left, right)


def _any(b: Builder, x: str) -> str:
    # a sum, because the largest of no elements is an error
    return b.greater(b.op("ReduceSum", b.cast(x, dtypes.INT64), keepdims=0), 0)


@lowers("All")
@lowers("All", domain="")
def all_true(b: Builder, node: ir.Node) -> str:
    return b.op("Not", _any(b, b.op("Not", node.inputs[0])))


@lowers("Group", moves=True)
def group(b: Builder, node: ir.Node) -> str:
    """True; it orders nothing here, because nothing is written in place."""
    return b.const(np.array([True]))


@lowers("PassThrough", moves=True)
def pass_through(b: Builder, node: ir.Node) -> tuple[str, ...]:
    return node.inputs


@lowers("View", moves=True)
def view(b: Builder, node: ir.Node) -> tuple[str, ...]:
    """Consecutive parts of a buffer, each in the shape that its input gives."""
    buffer, *shapes = node.inputs
    sizes = b.op("Concat", *(b.op("ReduceProd", shape, keepdims=1) for shape in shapes), axis=0)
    flat = b.reshape(buffer, -1)
    parts = b.ops("Split", flat, sizes, n=len(shapes), axis=0)
    return tuple(b.op("Reshape", part, shape) for part, shape in zip(parts, shapes, strict=True))


@lowers("MixedPrecisionScale")
def mixed_precision_scale(b: Builder, node: ir.Node) -> tuple[str, ...]:
    """cast(S X) of each X, or all of them in one flat tensor."""
    factor, *tensors = node.inputs
    factor = b.reshape(factor, b.const(np.zeros(0, np.int64)))
    scaled = [b.cast(b.mul(x, b.cast_like(factor, x)), node.attr("to")) for x in tensors]
    if not node.attr("fuse_outputs", 0):
        return tuple(scaled)
    flat = [b.reshape(x, -1) for x in scaled]
    return (flat[0] if len(flat) == 1 else b.op("Concat", *flat, axis=0),)


@lowers("ScaledSum")
def scaled_sum(b: Builder, node: ir.Node) -> str:
    """The sum of scale_i x_i over two or three tensors."""
    terms = [b.mul(x, node.attr(f"scale_{i}")) for i, x in enumerate(node.inputs) if x]
    return b.op("Sum", *terms)


@lowers("BatchScale")
def batch_scale(b: Builder, node: ir.Node) -> tuple[str, ...]:
    """x times each of two or three scales."""
    (x,) = node.inputs
    return tuple(
        b.mul(x, node.attr(f"scale_{i}")) if name else "" for i, name in enumerate(node.outputs)
    )


@lowers("InPlaceAccumulator")
def in_place_accumulator(b: Builder, node: ir.Node) -> str:
    """old + value, or old alone where the update signal says so."""
    old, value = node.inputs[:2]
    total = b.add(old, b.cast_like(value, old))
    signal = node.input(2)
    return b.where(signal, total, old) if signal else total


@lowers("ZeroGradient")
def zero_gradient(b: Builder, node: ir.Node) -> str:
    return b.zeros(b.shape(node.inputs[0]), node.inputs[0])
