"""Scattering: gradients of GatherElements and GatherND, padded sequences, triangles."""

from __future__ import annotations

import numpy as np

from edge_train import dtypes
from edge_train.graph import ir
from edge_train.graph.lowering.builder import TO_END, Builder, Refuse
from edge_train.graph.lowering.registry import lowers


@lowers("GatherElementsGrad")
def gather_elements_grad(b: Builder, node: ir.Node) -> str:
    """Zeros of the data's shape, each element of dY added where it was gathered from."""
    dy, shape, indices = node.inputs
    axis = node.attr("axis", 0)
    return b.op("ScatterElements", b.zeros(shape, dy), indices, dy, axis=axis, reduction="add")


@lowers("GatherNDGrad")
def gather_nd_grad(b: Builder, node: ir.Node) -> str:
    """Zeros of the data's shape, each slice of dY added where its index points."""
    shape, indices, dy = node.inputs
    indices = b.cast(indices, dtypes.INT64)
    batch = node.attr("batch_dims", 0)
    if not batch:
        return b.op("ScatterND", b.zeros(shape, dy), indices, dy, reduction="add")
    # the batch becomes one axis, whose position leads every index
    count = b.op("ReduceProd", b.shape_slice(indices, 0, batch), keepdims=1)
    flat_indices = b.reshape(indices, -1, b.shape_slice(indices, batch, b.rank(indices)))
    slices = [b.shape_slice(dy, batch, b.rank(dy))] if b.rank(dy) > batch else []
    grown = b.op("Concat", count, b.op("Slice", shape, *map(b.ints, (batch, TO_END, 0))), axis=0)
    where = _with_batch(b, flat_indices, count)
    dx = b.op("ScatterND", b.zeros(grown, dy), where, b.reshape(dy, -1, *slices), reduction="add")
    return b.op("Reshape", dx, shape)


def _with_batch(b: Builder, indices: str, count: str) -> str:
    """``indices`` (B, M..., k) with the position along B before the k others."""
    zero, one = b.const(np.array(0, np.int64)), b.const(np.array(1, np.int64))
    end = b.op("Squeeze", count, b.ints(0))
    positions = b.op("Range", zero, end, one, elem_type=dtypes.INT64)
    middle = b.rank(indices) - 2
    column = b.reshape(positions, -1, *(1,) * (middle + 1))
    parts: list[str | int] = [count]
    if middle:
        parts.append(b.shape_slice(indices, 1, 1 + middle))
    spread = b.op("Expand", column, b.concat_ints(*parts, 1))
    return b.op("Concat", spread, indices, axis=-1)


@lowers("ShrunkenGather", moves=True)
def shrunken_gather(b: Builder, node: ir.Node) -> str:
    return b.op("Gather", *node.inputs, axis=node.attr("axis", 0))


@lowers("Trilu", moves=True)
def trilu(b: Builder, node: ir.Node) -> str:
    return b.op("Trilu", *node.inputs, upper=node.attr("upper", 1))


@lowers("PadAndUnflatten", moves=True)
def pad_and_unflatten(b: Builder, node: ir.Node) -> tuple[str, ...]:
    """Rows (n, ...) put at their indices among M1 * M2 rows of zeros, seen as (M1, M2, ...)."""
    x, indices, dims = node.inputs
    total = b.op("ReduceProd", dims, keepdims=1)
    rank = b.rank(x)
    rest = [b.shape_slice(x, 1, rank)] if rank > 1 else []
    flat = b.concat_ints(total, *rest)
    place = b.op("Unsqueeze", b.cast(indices, dtypes.INT64), b.ints(-1))
    filled = b.op("ScatterND", b.zeros(flat, x), place, x)
    return b.op("Reshape", filled, b.concat_ints(dims, *rest)), flat


@lowers("FlattenAndUnpad", moves=True)
def flatten_and_unpad(b: Builder, node: ir.Node) -> tuple[str, str]:
    """The rows at ``indices`` of (M1, M2, ...) seen as (M1 * M2, ...), and (M1, M2)."""
    x, indices = node.inputs
    rank = b.rank(x)
    if rank < 2:
        raise Refuse(f"'{x}' has {rank} axes; expected two to flatten")
    rest = [b.shape_slice(x, 2, rank)] if rank > 2 else []
    flat = b.reshape(x, -1, *rest)
    return b.op("Gather", flat, indices, axis=0), b.shape_slice(x, 0, 2)
