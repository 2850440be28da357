"""Undoing a broadcast: the gradient of a repeated axis is the sum along it."""

from __future__ import annotations

from edge_train import dtypes
from edge_train.graph import ir
from edge_train.graph.formula import Formula


def unbroadcast(b: Formula, gradient: str, like: str, target: str) -> str:
    """Sums ``gradient`` (sizes of ``like``) down to the shape of ``target``."""
    axes = _broadcast_axes(b.shapes.dims(like), b.shapes.dims(target))
    if axes is None:
        rank = max(b.rank(like), b.rank(target))
        grown = _left_padded(b, b.shape(target), rank - b.rank(target))
        run_time = b.op("Reshape", repeated_axes(b, grown, b.shape(like)), b.ints(-1))
        total = b.op("ReduceSum", gradient, run_time, keepdims=1, noop_with_empty_axes=1)
        return b.reshape_like(total, target)
    if not axes:
        return gradient
    missing = b.rank(like) - b.rank(target)
    if axes == list(range(missing)):
        return b.sum(gradient, axes, keepdims=False)
    total = b.sum(gradient, axes)
    return b.op("Squeeze", total, b.ints(*range(missing))) if missing else total


def _broadcast_axes(
    full: tuple[ir.Dim, ...] | None, part: tuple[ir.Dim, ...] | None
) -> list[int] | None:
    """Axes of ``full`` that ``part`` repeats along; None where only the run can tell."""
    if full is None or part is None:
        return None
    missing = len(full) - len(part)
    axes = list(range(missing))
    for axis, (size, own) in enumerate(zip(full[missing:], part, strict=True), missing):
        if own == 1:
            if size != 1:
                axes.append(axis)
        elif own is None or own != size:
            return None
    return axes


def _left_padded(b: Formula, shape: str, missing: int) -> str:
    return b.concat_ints(b.ints(*[1] * missing), shape) if missing else shape


def repeated_axes(b: Formula, part: str, full: str) -> str:
    """Indices where ``part`` is 1 and ``full`` is not (both 1-D of one length), as (1, k)."""
    repeated = b.op("And", b.equal(part, 1), b.op("Not", b.equal(full, 1)))
    return b.op("NonZero", repeated, elem_type=dtypes.INT64)
