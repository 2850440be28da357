"""Rows of scaling, division, sums, matrix products and undone broadcasts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from support.lowering import Array, Row, node, normals

Shape = tuple[int, ...]


def scale_row(name: str, factor: Any, **attrs: Any) -> Row:
    (x,) = normals(41, (3, 4))
    by = 1 / float(factor) if attrs.get("scale_down") else float(factor)
    nodes = (node("Scale", "x factor", "y", **attrs),)
    return Row(name, nodes, {"x": x, "factor": factor}, {"y": x.astype(np.float64) * by})


def _reduced(gradient: Array, shape: Shape) -> Array:
    """Summed over what broadcasting repeated."""
    gradient = gradient.sum(tuple(range(gradient.ndim - len(shape))))
    repeated = tuple(
        axis for axis, size in enumerate(shape) if size == 1 and gradient.shape[axis] != 1
    )
    return gradient.sum(repeated, keepdims=True)


def div_grad_row(name: str, a: Shape, b: Shape, outputs: str = "da db") -> Row:
    numerator, divisor, dy = normals(42, a, b, np.broadcast_shapes(a, b))
    divisor = np.asarray(divisor + np.sign(divisor), np.float32)
    wide, top, low = (value.astype(np.float64) for value in (dy, numerator, divisor))
    values = {"da": _reduced(wide / low, a), "db": _reduced(-wide * top / (low * low), b)}
    return Row(
        name,
        (node("DivGrad", "dy a b", outputs),),
        {"dy": dy, "a": numerator, "b": divisor},
        {key: value for key, value in values.items() if key in outputs.split()},
    )


def broadcast_row(
    name: str, a: Shape, b: Shape, outputs: str = "da db", reference: str = ""
) -> Row:
    rank = max(len(a), len(b))
    wide = [(1,) * (rank - len(shape)) + shape for shape in (a, b)]
    values = {
        key: np.array([i for i in reversed(range(rank)) if own[i] == 1 != other[i]], np.int64)
        for key, own, other in (("da", wide[0], wide[1]), ("db", wide[1], wide[0]))
    }
    return Row(
        name,
        (node("BroadcastGradientArgs", "a b", outputs),),
        {"a": np.array(a, np.int64), "b": np.array(b, np.int64)},
        {key: value for key, value in values.items() if key in outputs.split()},
        reference=reference,
    )


def reduce_sum_row(name: str, axes: list[int], **attrs: Any) -> Row:
    (x,) = normals(43, (2, 3, 4))
    wide, keep = x.astype(np.float64), bool(attrs.get("keepdims", 1))
    if axes or not attrs.get("noop_with_empty_axes", 0):
        wide = wide.sum(tuple(axes) or None, keepdims=keep)
    feeds = {"x": x, "axes": np.array(axes, np.int64)}
    return Row(name, (node("ReduceSumTraining", "x axes", "y", **attrs),), feeds, {"y": wide})


def matmul_row(name: str, a: Shape, b: Shape, **attrs: Any) -> Row:
    left, right = normals(44, a, b)
    batched = [
        np.moveaxis(value.astype(np.float64), 0, -2) if attrs.get(flag) else value
        for value, flag in ((left, "transBatchA"), (right, "transBatchB"))
    ]
    turned = [
        np.swapaxes(value, -1, -2) if attrs.get(flag) else value
        for value, flag in (
            (batched[0].astype(np.float64), "transA"),
            (batched[1].astype(np.float64), "transB"),
        )
    ]
    expected = attrs.get("alpha", 1.0) * (turned[0] @ turned[1])
    nodes = (node("FusedMatMul", "a b", "y", **attrs),)
    return Row(name, nodes, {"a": left, "b": right}, {"y": np.asarray(expected)})


_ROWS: dict[str, Callable[[str], Row]] = {
    "Scale": partial(scale_row, factor=np.array(0.3, np.float32)),
    "Scale: down": partial(scale_row, factor=np.array(7.0, np.float32), scale_down=1),
    "Scale: int64": partial(scale_row, factor=np.array(6, np.int64), scale_down=1),
    "DivGrad": partial(div_grad_row, a=(3, 4), b=(3, 4)),
    "DivGrad: row and column": partial(div_grad_row, a=(1, 4), b=(3, 1)),
    "DivGrad: scalar divisor": partial(div_grad_row, a=(3, 4), b=()),
    "DivGrad: scalar numerator": partial(div_grad_row, a=(), b=(3, 4)),
    "DivGrad: leading axes": partial(div_grad_row, a=(2, 3, 4), b=(4,)),
    "DivGrad: leading and middle": partial(div_grad_row, a=(2, 3, 4), b=(1, 4)),
    "DivGrad: longer divisor": partial(div_grad_row, a=(3, 1), b=(2, 3, 4)),
    "DivGrad: ones on both sides": partial(div_grad_row, a=(1, 4), b=(1, 1)),
    "DivGrad: only numerator": partial(div_grad_row, a=(3, 1), b=(3, 4), outputs="da"),
    "DivGrad: only divisor": partial(div_grad_row, a=(3, 4), b=(4,), outputs="_ db"),
    "BroadcastGradientArgs": partial(broadcast_row, a=(2, 1, 4), b=(3, 1)),
    "BroadcastGradientArgs: scalar": partial(broadcast_row, a=(), b=(2, 3)),
    "BroadcastGradientArgs: two scalars": partial(broadcast_row, a=(), b=()),
    "BroadcastGradientArgs: equal": partial(broadcast_row, a=(2, 3), b=(2, 3)),
    "BroadcastGradientArgs: ones on both sides": partial(broadcast_row, a=(1, 3), b=(1, 1)),
    "BroadcastGradientArgs: only first": partial(broadcast_row, a=(4,), b=(2, 3, 1), outputs="da"),
    "BroadcastGradientArgs: leading 1": partial(
        broadcast_row,
        a=(4,),
        b=(2, 1, 1),
        reference="it lists missing leading axes even where they are 1; the sums are the same",
    ),
    "BroadcastGradientArgs: only second": partial(
        broadcast_row, a=(2, 3, 4), b=(3, 1), outputs="_ db"
    ),
    "ReduceSumTraining": partial(reduce_sum_row, axes=[1]),
    "ReduceSumTraining: keepdims 0": partial(reduce_sum_row, axes=[0, -1], keepdims=0),
    "ReduceSumTraining: all": partial(reduce_sum_row, axes=[], keepdims=0),
    "ReduceSumTraining: none": partial(reduce_sum_row, axes=[], noop_with_empty_axes=1),
    "FusedMatMul": partial(matmul_row, a=(3, 4), b=(4, 5)),
    "FusedMatMul: transA": partial(matmul_row, a=(4, 3), b=(4, 5), transA=1),
    "FusedMatMul: transB": partial(matmul_row, a=(3, 4), b=(5, 4), transB=1),
    "FusedMatMul: both, alpha": partial(
        matmul_row, a=(2, 4, 3), b=(2, 5, 4), transA=1, transB=1, alpha=0.25
    ),
    "FusedMatMul: batches": partial(matmul_row, a=(2, 3, 4, 5), b=(2, 3, 6, 5), transB=1),
    "FusedMatMul: batch by matrix": partial(matmul_row, a=(2, 3, 4), b=(4, 5)),
    "FusedMatMul: transBatchA": partial(matmul_row, a=(3, 2, 4), b=(2, 4, 5), transBatchA=1),
    "FusedMatMul: transBatchB, transB": partial(
        matmul_row, a=(2, 3, 4), b=(5, 2, 4), transBatchB=1, transB=1
    ),
    "FusedMatMul: transBatch and trans of both": partial(
        matmul_row,
        a=(4, 2, 3, 6),
        b=(5, 2, 3, 4),
        transBatchA=1,
        transA=1,
        transBatchB=1,
        transB=1,
    ),
    "FusedMatMul: matrix by batch": partial(matmul_row, a=(4, 3), b=(2, 4, 5), transA=1),
}

TABLE = {name: partial(build, name) for name, build in _ROWS.items()}
