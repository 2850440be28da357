"""Shape rules of the ops that move, cut and join axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from edge_train import dtypes
from edge_train.graph import ir
from edge_train.graph.shape_rules import Dims, Facts, axes_of, axis_of, ints, like, rule, unknown

if TYPE_CHECKING:
    from edge_train.graph.shapes import Shapes


def product(dims: Sequence[ir.Dim]) -> ir.Dim:
    """The number of elements; a symbol stays where it is the only size above 1."""
    sizes = ints(dims)
    if sizes is not None:
        return math.prod(sizes)
    rest = [dim for dim in dims if dim != 1]
    return rest[0] if len(rest) == 1 else None


def _pass_contents(s: Shapes, node: ir.Node) -> None:
    contents = s.contents(node.input(0))
    if contents is not None:
        s.set_contents(node.output(0), contents)


@rule("Reshape")
def _reshape(s: Shapes, node: ir.Node) -> Facts:
    elem_type, dims = like(s, node.input(0))
    target, shape = s.contents(node.input(1)), s.dims(node.input(1))
    _pass_contents(s, node)
    if target is None:
        return [(elem_type, unknown(shape[0] if shape else None))]
    result = list(target)
    for i, size in enumerate(target):
        if size == 0 and not node.attr("allowzero", 0):
            result[i] = dims[i] if dims is not None else None
    if -1 in result:
        _fill_last(result, dims)
    return [(elem_type, tuple(result))]


def _fill_last(result: list[ir.Dim], dims: Dims | None) -> None:
    """Replaces the -1 of a Reshape by what is left of the input."""
    index = result.index(-1)
    have: list[ir.Dim] = list(dims) if dims is not None else [None]
    rest = [dim for i, dim in enumerate(result) if i != index]
    for dim in [dim for dim in rest if isinstance(dim, str) and dim in have]:
        rest.remove(dim)  # a symbol on both sides cancels out
        have.remove(dim)
    total, known = product(have), ints(rest)
    result[index] = None
    if known is not None and isinstance(total, int) and math.prod(known) > 0:
        result[index] = total // math.prod(known)
    elif known is not None and math.prod(known) == 1:
        result[index] = total


@rule("Flatten")
def _flatten(s: Shapes, node: ir.Node) -> Facts:
    elem_type, dims = like(s, node.input(0))
    if dims is None:
        return [(elem_type, (None, None))]
    axis = node.attr("axis", 1)
    axis = axis + len(dims) if axis < 0 else axis
    return [(elem_type, (product(dims[:axis]), product(dims[axis:])))]


@rule("Transpose")
def _transpose(s: Shapes, node: ir.Node) -> Facts:
    elem_type, dims = like(s, node.input(0))
    perm = node.attr("perm")
    if dims is None:
        return [(elem_type, (None,) * len(perm) if perm else None)]
    return [(elem_type, tuple([dims[i] for i in perm]) if perm else dims[::-1])]


@rule("Squeeze")
def _squeeze(s: Shapes, node: ir.Node) -> Facts:
    elem_type, dims = like(s, node.input(0))
    axes = axes_of(s, node)
    _pass_contents(s, node)
    if dims is None or (axes is None and (node.input(1) or ints(dims) is None)):
        return [(elem_type, None)]
    gone = {axis_of(axis, len(dims)) for axis in axes or ()}
    if axes is None:
        gone = {i for i, dim in enumerate(dims) if dim == 1}
    return [(elem_type, tuple([dim for i, dim in enumerate(dims) if i not in gone]))]


@rule("Unsqueeze")
def _unsqueeze(s: Shapes, node: ir.Node) -> Facts:
    elem_type, dims = like(s, node.input(0))
    axes = axes_of(s, node)
    _pass_contents(s, node)
    if dims is None or axes is None:
        return [(elem_type, None)]
    rank = len(dims) + len(axes)
    new = {axis_of(axis, rank) for axis in axes}
    old = iter(dims)
    return [(elem_type, tuple([1 if i in new else next(old) for i in range(rank)]))]


@rule("Concat", "ConcatTraining")
def _concat(s: Shapes, node: ir.Node) -> Facts:
    lengths = (dtypes.INT64, (len(node.inputs),))
    elem_type = s.elem_type(node.input(0))
    parts = [dims for name in node.inputs if (dims := s.dims(name)) is not None]
    if not parts:
        return [(elem_type, None), lengths]
    axis = axis_of(node.attr("axis", 1), len(parts[0]))
    contents = [s.contents(name) for name in node.inputs]
    if len(parts[0]) == 1 and all(values is not None for values in contents):
        s.set_contents(node.output(0), [v for values in contents for v in values or ()])
    sizes = ints([dims[axis] for dims in parts])
    known = sizes is not None and len(parts) == len(node.inputs)
    length = sum(sizes) if known and sizes else None
    if known and node.output(1):
        s.set_contents(node.output(1), sizes or ())
    return [(elem_type, (*parts[0][:axis], length, *parts[0][axis + 1 :])), lengths]


@rule("Split", "SplitTraining")
def _split(s: Shapes, node: ir.Node) -> Facts:
    elem_type, dims = like(s, node.input(0))
    count = len(node.outputs)
    if dims is None:
        return [(elem_type, None)] * count
    axis = axis_of(node.attr("axis", 0), len(dims))
    sizes: Sequence[ir.Dim] | None = s.contents(node.input(1)) or node.attr("split")
    if sizes is None and not node.input(1) and isinstance(dims[axis], int):
        whole = int(dims[axis] or 0)
        each = -(-whole // count)
        sizes = [min(each, whole - i * each) for i in range(count)]
    sizes = sizes if sizes is not None and len(sizes) == count else [None] * count
    return [(elem_type, (*dims[:axis], size, *dims[axis + 1 :])) for size in sizes]


@rule("Slice")
def _slice(s: Shapes, node: ir.Node) -> Facts:
    elem_type, dims = like(s, node.input(0))
    if dims is None:
        return [(elem_type, None)]
    starts, ends = (s.contents(node.input(i)) for i in (1, 2))
    axes, steps = (ints(s.contents(node.input(i))) for i in (3, 4))
    if (axes is None and node.input(3)) or (steps is None and node.input(4)):
        return [(elem_type, (None,) * len(dims))]
    if axes is None:
        length = next((len(v) for v in (starts, ends) if v is not None), len(dims))
        axes = tuple(range(length))
    result = list(dims)
    for i, axis in enumerate(axes):
        limits = (starts[i] if starts else None, ends[i] if ends else None)
        index = axis_of(axis, len(dims))
        result[index] = _sliced(dims[index], limits, steps[i] if steps else 1)
    contents = s.contents(node.input(0))
    listed = contents if len(dims) == 1 and axes in ((0,), (-1,)) else None
    if listed is not None and (bounds := ints(starts)) and (to := ints(ends)):
        s.set_contents(node.output(0), listed[bounds[0] : to[0] : steps[0] if steps else 1])
    return [(elem_type, tuple(result))]


def _sliced(size: ir.Dim, limits: tuple[ir.Dim, ir.Dim], step: int) -> ir.Dim:
    start, end = limits
    if start == 0 and step == 1 and isinstance(end, int) and end >= 2**31 - 1:
        return size
    if not all(isinstance(value, int) for value in (size, start, end)):
        return None
    return len(range(*slice(start, end, step).indices(size)))  # type: ignore[arg-type]


@rule("Gather", "ShrunkenGather")
def _gather(s: Shapes, node: ir.Node) -> Facts:
    elem_type, dims = like(s, node.input(0))
    indices = s.dims(node.input(1))
    contents, picked = s.contents(node.input(0)), ints(s.contents(node.input(1)))
    if contents is not None and picked is not None and dims is not None and len(dims) == 1:
        s.set_contents(node.output(0), [contents[i] for i in picked])
    if dims is None or indices is None:
        return [(elem_type, None)]
    axis = axis_of(node.attr("axis", 0), len(dims))
    return [(elem_type, (*dims[:axis], *indices, *dims[axis + 1 :]))]


@rule("GatherElements")
def _gather_elements(s: Shapes, node: ir.Node) -> Facts:
    return [(s.elem_type(node.input(0)), s.dims(node.input(1)))]


@rule("GatherND")
def _gather_nd(s: Shapes, node: ir.Node) -> Facts:
    elem_type, dims = like(s, node.input(0))
    indices = s.dims(node.input(1))
    if dims is None or indices is None or not isinstance(indices[-1], int):
        return [(elem_type, None)]
    return [(elem_type, (*indices[:-1], *dims[node.attr("batch_dims", 0) + indices[-1] :]))]


@rule("PadAndUnflatten")
def _pad_and_unflatten(s: Shapes, node: ir.Node) -> Facts:
    elem_type, x = like(s, node.input(0))
    rest = None if x is None else x[1:]
    dims, length = s.contents(node.input(2)), None if x is None else (len(x),)
    whole = None if rest is None else (*(dims or (None, None)), *rest)
    return [(elem_type, whole), (dtypes.INT64, length)]


@rule("FlattenAndUnpad")
def _flatten_and_unpad(s: Shapes, node: ir.Node) -> Facts:
    elem_type, x = like(s, node.input(0))
    indices = s.dims(node.input(1))
    dims = None if x is None or indices is None else (*indices, *x[2:])
    return [(elem_type, dims), (dtypes.INT64, (2,))]


@rule("Tile")
def _tile(s: Shapes, node: ir.Node) -> Facts:
    elem_type, dims = like(s, node.input(0))
    repeats = s.contents(node.input(1))
    if dims is None:
        return [(elem_type, None)]
    pairs = zip(dims, repeats or (None,) * len(dims), strict=True)
    return [(elem_type, tuple([_times(dim, count) for dim, count in pairs]))]


def _times(dim: ir.Dim, count: ir.Dim) -> ir.Dim:
    if isinstance(dim, int) and isinstance(count, int):
        return dim * count
    return dim if count == 1 else None


@rule("Pad")
def _pad(s: Shapes, node: ir.Node) -> Facts:
    elem_type, dims = like(s, node.input(0))
    if dims is None:
        return [(elem_type, None)]
    pads, axes = ints(s.contents(node.input(1))), ints(s.contents(node.input(3)))
    if pads is None or (axes is None and node.input(3)):
        return [(elem_type, (None,) * len(dims))]
    result, count = list(dims), len(pads) // 2
    for i, axis in enumerate(axes if axes is not None else range(count)):
        index, grown = axis_of(axis, len(dims)), pads[i] + pads[count + i]
        size = dims[index]
        result[index] = size + grown if isinstance(size, int) else None if grown else size
    return [(elem_type, tuple(result))]


@rule("OneHot")
def _one_hot(s: Shapes, node: ir.Node) -> Facts:
    elem_type, dims = s.elem_type(node.input(2)), s.dims(node.input(0))
    if dims is None:
        return [(elem_type, None)]
    axis, depth = axis_of(node.attr("axis", -1), len(dims) + 1), s.contents(node.input(1))
    return [(elem_type, (*dims[:axis], depth[0] if depth else None, *dims[axis:]))]


@rule("Compress")
def _compress(s: Shapes, node: ir.Node) -> Facts:
    elem_type, dims = like(s, node.input(0))
    axis = node.attr("axis")
    if axis is None:
        return [(elem_type, (None,))]
    if dims is None:
        return [(elem_type, None)]
    axis = axis_of(axis, len(dims))
    return [(elem_type, (*dims[:axis], None, *dims[axis + 1 :]))]


@rule("CenterCropPad")
def _center_crop_pad(s: Shapes, node: ir.Node) -> Facts:
    elem_type, dims = like(s, node.input(0))
    if dims is None:
        return [(elem_type, None)]
    axes = [axis_of(axis, len(dims)) for axis in node.attr("axes") or range(len(dims))]
    sizes = s.contents(node.input(1)) or (None,) * len(axes)
    made = dict(zip(axes, sizes, strict=True))
    return [(elem_type, tuple([made.get(i, dim) for i, dim in enumerate(dims)]))]
