"""Rows of the ops that move data: gradients of Gather and Slice, Concat and Split."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from support.lowering import Array, Row, node, normals

Shape = tuple[int, ...]


def gather_grad_row(
    name: str, shape: Shape, indices: Any, kind: type = np.int64, **attrs: Any
) -> Row:
    axis = attrs.get("axis", 0) % len(shape)
    index = np.array(indices, kind)
    (dy,) = normals(51, shape[:axis] + index.shape + shape[axis + 1 :])
    expected = np.zeros(shape)
    where = (slice(None),) * axis + (index,)
    np.add.at(expected, where, dy.astype(np.float64))
    feeds = {"shape": np.array(shape, np.int64), "indices": index, "dy": dy}
    nodes = (node("GatherGrad", "shape indices dy", "dx", **attrs),)
    return Row(name, nodes, feeds, {"dx": expected}, sized=("shape",))


def slice_grad_row(
    name: str,
    starts: list[int],
    ends: list[int],
    axes: list[int] | None = None,
    steps: list[int] | None = None,
    fed: bool = False,
    shape: Shape = (4, 5, 6),
) -> Row:
    cut = [slice(None)] * len(shape)
    for i, axis in enumerate(range(len(starts)) if axes is None else axes):
        size, step = shape[axis], 1 if steps is None else steps[i]
        start, end = starts[i], ends[i]
        if step > 0:
            cut[axis] = slice(start, end, step)
        else:  # an end in front of the first element, which Python cannot say as a number
            cut[axis] = slice(start, None if end < -size else end, step)
    expected = np.zeros(shape)
    (dy,) = normals(52, expected[tuple(cut)].shape)
    expected[tuple(cut)] = dy
    given = {"starts": starts, "ends": ends, "axes": axes, "steps": steps}
    numbers = {key: np.array(v, np.int64) for key, v in given.items() if v is not None}
    names = [key if key in numbers else "_" for key in given]
    while names[-1] == "_":
        names.pop()
    feeds: dict[str, Array] = {"dy": dy, "shape": np.array(shape, np.int64)}
    return Row(
        name,
        (node("SliceGrad", f"dy shape {' '.join(names)}", "dx"),),
        {**feeds, **numbers} if fed else feeds,
        {"dx": expected},
        constants={} if fed else numbers,
        sized=("shape", *numbers),
        reference="narrowing_error there" if any(end < -9 for end in ends) else "",
    )


def concat_row(name: str, sizes: list[int], axis: int, lengths: bool = True) -> Row:
    shapes = [
        tuple(size if i == axis % 3 else n for i, n in enumerate((2, 3, 4))) for size in sizes
    ]
    parts = list(normals(53, *shapes))
    feeds = {f"x{i}": part for i, part in enumerate(parts)}
    expected: dict[str, Array] = {"y": np.concatenate(parts, axis).astype(np.float64)}
    if lengths:
        expected["lengths"] = np.array(sizes, np.int64)
    nodes = (node("ConcatTraining", " ".join(feeds), " ".join(expected), axis=axis),)
    return Row(name, nodes, feeds, expected)


def split_row(name: str, sizes: list[int], fed: bool = False, **attrs: Any) -> Row:
    axis = attrs.get("axis", 0)
    shape = tuple(sum(sizes) if i == axis % 3 else n for i, n in enumerate((2, 3, 4)))
    (x,) = normals(54, shape)
    parts = np.split(x.astype(np.float64), np.cumsum(sizes)[:-1], axis)
    expected = {f"y{i}": part for i, part in enumerate(parts)}
    split = {"split": np.array(sizes, np.int64)}
    nodes = (node("SplitTraining", "x split", " ".join(expected), **attrs),)
    feeds = {"x": x, **split} if fed else {"x": x}
    return Row(name, nodes, feeds, expected, {} if fed else split, sized=("split",))


_BOX = (4, 3, 5)

_ROWS: dict[str, Callable[[str], Row]] = {
    "GatherGrad": partial(gather_grad_row, shape=(6, 3), indices=[1, 4, 1, 0]),
    "GatherGrad: negative indices": partial(gather_grad_row, shape=(6, 3), indices=[-1, 5, -6]),
    "GatherGrad: indices of rank 2": partial(
        gather_grad_row, shape=(6, 3), indices=[[1, 2, 1], [0, 1, 5]]
    ),
    "GatherGrad: scalar index": partial(gather_grad_row, shape=(6, 3), indices=2),
    "GatherGrad: axis 1": partial(gather_grad_row, shape=_BOX, indices=[2, 2, 0], axis=1),
    "GatherGrad: axis -1, rank 2": partial(
        gather_grad_row, shape=_BOX, indices=[[4, 0], [4, -1]], axis=-1
    ),
    "GatherGrad: axis 1, scalar": partial(gather_grad_row, shape=_BOX, indices=1, axis=1),
    "GatherGrad: one axis": partial(gather_grad_row, shape=(5,), indices=[3, 3]),
    "GatherGrad: int32": partial(gather_grad_row, shape=(6, 3), indices=[1, 4], kind=np.int32),
    "SliceGrad": partial(slice_grad_row, starts=[1], ends=[4], axes=[1]),
    "SliceGrad: all axes": partial(slice_grad_row, starts=[1, 0, 2], ends=[3, 5, 6]),
    "SliceGrad: negative": partial(slice_grad_row, starts=[-3], ends=[-1], axes=[-1]),
    "SliceGrad: beyond both ends": partial(
        slice_grad_row, starts=[-9, 2], ends=[2, 99], axes=[1, 2]
    ),
    "SliceGrad: step 2": partial(slice_grad_row, starts=[0], ends=[9], axes=[2], steps=[2]),
    "SliceGrad: step 1": partial(slice_grad_row, starts=[2], ends=[4], axes=[0], steps=[1]),
    "SliceGrad: backwards": partial(slice_grad_row, starts=[4], ends=[0], axes=[1], steps=[-2]),
    "SliceGrad: backwards to the front": partial(
        slice_grad_row, starts=[3], ends=[-100], axes=[0], steps=[-1]
    ),
    "SliceGrad: nothing": partial(slice_grad_row, starts=[3], ends=[3], axes=[1]),
    "SliceGrad: start behind the end": partial(slice_grad_row, starts=[9], ends=[99], axes=[1]),
    "SliceGrad: fed": partial(
        slice_grad_row, starts=[1, 0], ends=[3, 5], axes=[2, 0], steps=[1, 2], fed=True
    ),
    "SliceGrad: fed, no axes": partial(slice_grad_row, starts=[1], ends=[3], fed=True),
    "ConcatTraining": partial(concat_row, sizes=[2, 3], axis=1),
    "ConcatTraining: axis -1": partial(concat_row, sizes=[1, 3, 2], axis=-1),
    "ConcatTraining: one output": partial(concat_row, sizes=[1, 2], axis=0, lengths=False),
    "ConcatTraining: one input": partial(concat_row, sizes=[2], axis=0),
    "SplitTraining": partial(split_row, sizes=[2, 3], axis=1),
    "SplitTraining: default axis": partial(split_row, sizes=[1, 3]),
    "SplitTraining: axis -1, fed": partial(split_row, sizes=[1, 3, 2], axis=-1, fed=True),
}

TABLE = {name: partial(build, name) for name, build in _ROWS.items()}
