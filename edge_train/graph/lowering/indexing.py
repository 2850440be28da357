"""Moving data: gradients of Gather and Slice, Concat and Split as the training graph has them."""

from __future__ import annotations

import numpy as np

from edge_train import dtypes
from edge_train.graph import ir
from edge_train.graph.lowering.builder import Builder, Refuse
from edge_train.graph.lowering.registry import lowers


@lowers("ConcatTraining", moves=True)
def concat_training(b: Builder, node: ir.Node) -> tuple[str, ...]:
    axis = node.attr("axis")
    joined = b.op("Concat", *node.inputs, axis=axis)
    if not node.output(1):
        return (joined,)
    axis = axis % b.rank(node.inputs[0])
    return joined, b.concat_ints(*(b.shape_slice(x, axis, axis + 1) for x in node.inputs))


@lowers("SplitTraining", moves=True)
def split_training(b: Builder, node: ir.Node) -> tuple[str, ...]:
    return b.ops("Split", *node.inputs, n=len(node.outputs), axis=node.attr("axis", 0))


@lowers("GatherGrad")
def gather_grad(b: Builder, node: ir.Node) -> str:
    """Zeros of the data's shape, each slice of dY added where it was gathered from."""
    shape, indices, dy = node.inputs
    axis, rank = node.attr("axis", 0), _rank_of_shape(b, shape)
    axis %= rank
    index = b.op("Unsqueeze", b.cast(indices, dtypes.INT64), b.ints(-1))
    if axis == 0:
        return b.op("ScatterND", b.zeros(shape, dy), index, dy, reduction="add")
    # bring the gathered axis to the front, scatter, and put it back
    moved = [axis, *(i for i in range(rank) if i != axis)]
    gathered = rank - 1 + b.rank(indices)
    window = range(axis, axis + b.rank(indices))
    front = b.transpose(dy, *window, *(i for i in range(gathered) if i not in window))
    turned = b.op("Gather", shape, b.ints(*moved))
    total = b.op("ScatterND", b.zeros(turned, dy), index, front, reduction="add")
    return b.transpose(total, *(int(i) for i in np.argsort(moved)))


def _rank_of_shape(b: Builder, shape: str) -> int:
    value = b.constant_value(shape)
    if value is not None:
        return int(value.size)
    producer = b.producers.get(shape)
    if producer is not None and producer.op_type == "Shape":
        return b.rank(producer.inputs[0])
    dims = b.shapes.dims(shape)
    if dims is None or not isinstance(dims[0], int):
        raise Refuse(f"the length of the shape tensor '{shape}' is not known")
    return dims[0]


@lowers("SliceGrad")
def slice_grad(b: Builder, node: ir.Node) -> str:
    """Zeros of the data's shape with dY where the slice was cut out."""
    dy, shape, starts, _, axes, steps = (*node.inputs, "", "")[:6]
    begin = b.constant_value(starts)
    stride = b.constant_value(steps) if steps else np.ones(1, np.int64)
    where = b.constant_value(axes) if axes else np.arange(0 if begin is None else begin.size)
    if begin is None or where is None or stride is None or np.any(stride != 1):
        return _scatter_slice(b, node)
    rank = _rank_of_shape(b, shape)
    full = np.zeros(rank, np.int64)
    full[where] = begin
    first = b.op("Min", b.const(np.maximum(full, 0)), shape)
    if np.any(full < 0):
        from_end = b.op("Max", b.add(shape, b.const(full)), b.scalar(0, shape))
        first = b.where(b.const(full < 0), from_end, first)
    last = b.sub(b.sub(shape, first), b.shape(dy))
    return b.op("Pad", dy, b.op("Concat", first, last, axis=0))


def _scatter_slice(b: Builder, node: ir.Node) -> str:
    """Any steps: number the elements, cut the numbers the same way, scatter dY to them."""
    dy, shape = node.inputs[:2]
    count = b.op("ReduceProd", shape, keepdims=0)
    zero, one = b.const(np.array(0, np.int64)), b.const(np.array(1, np.int64))
    numbers = b.op("Reshape", b.op("Range", zero, count, one, elem_type=dtypes.INT64), shape)
    cut = b.op("Reshape", b.op("Slice", numbers, *node.inputs[2:]), b.ints(-1))
    blank = b.zeros(b.op("Reshape", count, b.ints(1)), dy)
    filled = b.op("ScatterElements", blank, cut, b.op("Reshape", dy, b.ints(-1)), axis=0)
    return b.op("Reshape", filled, shape)
