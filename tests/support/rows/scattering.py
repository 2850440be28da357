"""Rows of GatherElementsGrad, GatherNDGrad, ShrunkenGather, Trilu, and of padded sequences."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from support.lowering import NO_KERNEL, Array, Row, node, normals

Shape = tuple[int, ...]


def gather_elements_row(
    name: str, shape: Shape, picked: Shape, axis: int | None = None, kind: type = np.int64
) -> Row:
    along = 0 if axis is None else axis
    rng = np.random.default_rng(61)
    index = rng.integers(-shape[along], shape[along], picked).astype(kind)
    (dy,) = normals(61, picked)
    expected = np.zeros(shape)
    where = list(np.indices(picked))
    where[along] = index
    np.add.at(expected, tuple(where), dy.astype(np.float64))
    feeds = {"dy": dy, "shape": np.array(shape, np.int64), "indices": index}
    nodes = (node("GatherElementsGrad", "dy shape indices", "dx", axis=axis),)
    return Row(name, nodes, feeds, {"dx": expected}, sized=("shape",))


def gather_nd_row(
    name: str, shape: Shape, indices: Shape, batch: int = 0, kind: type = np.int64
) -> Row:
    """``indices`` is the shape of the index tensor (batch..., M..., k)."""
    rng, depth = np.random.default_rng(62), indices[-1]
    columns = [rng.integers(0, size, indices[:-1]) for size in shape[batch : batch + depth]]
    index = np.stack(columns, -1).astype(kind)
    (dy,) = normals(62, (*indices[:-1], *shape[batch + depth :]))
    expected = np.zeros(shape)
    lead = np.indices(indices[:-1])[:batch]
    np.add.at(expected, (*lead, *np.moveaxis(index, -1, 0)), dy.astype(np.float64))
    feeds = {"shape": np.array(shape, np.int64), "indices": index, "dy": dy}
    attrs = {"batch_dims": batch} if batch else {}
    nodes = (node("GatherNDGrad", "shape indices dy", "dx", **attrs),)
    int64_only = "" if kind is np.int64 else "it takes int64 only"
    return Row(name, nodes, feeds, {"dx": expected}, sized=("shape",), reference=int64_only)


def shrunken_row(name: str, shape: Shape, indices: Any, **attrs: Any) -> Row:
    (x,) = normals(63, shape)
    index = np.array(indices, np.int64)
    y = np.take(x.astype(np.float64), index, attrs.get("axis", 0))
    nodes = (node("ShrunkenGather", "x indices", "y", **attrs),)
    return Row(name, nodes, {"x": x, "indices": index}, {"y": y})


def trilu_row(name: str, shape: Shape, k: int | None = None, upper: int | None = None) -> Row:
    (x,) = normals(64, shape)
    cut = np.tril if upper == 0 else np.triu
    constants = {} if k is None else {"k": np.array(k, np.int64)}
    nodes = (node("Trilu", "x" if k is None else "x k", "y", upper=upper),)
    return Row(name, nodes, {"x": x}, {"y": cut(x.astype(np.float64), k or 0)}, constants)


def pad_row(name: str, rest: Shape = (4,), shape_output: bool = False) -> Row:
    dims, index = (3, 5), np.array([0, 2, 3, 7, 11, 14], np.int64)
    (x,) = normals(65, (index.size, *rest))
    y = np.zeros((15, *rest))
    y[index] = x
    expected: dict[str, Array] = {"y": y.reshape(*dims, *rest)}
    if shape_output:
        expected["flat"] = np.array([15, *rest], np.int64)
    feeds = {"x": x, "indices": index, "dims": np.array(dims, np.int64)}
    nodes = (node("PadAndUnflatten", "x indices dims", " ".join(expected)),)
    return Row(name, nodes, feeds, expected, sized=("dims",), reference=NO_KERNEL)


def unpad_row(name: str, rest: Shape = (4,)) -> Row:
    index = np.array([1, 2, 6, 13], np.int64)
    (x,) = normals(66, (3, 5, *rest))
    expected: dict[str, Array] = {
        "y": x.astype(np.float64).reshape(15, *rest)[index],
        "dims": np.array([3, 5], np.int64),
    }
    nodes = (node("FlattenAndUnpad", "x indices", "y dims"),)
    return Row(name, nodes, {"x": x, "indices": index}, expected, reference=NO_KERNEL)


_ROWS: dict[str, Callable[[str], Row]] = {
    "GatherElementsGrad": partial(gather_elements_row, shape=(4, 5), picked=(3, 5)),
    "GatherElementsGrad: axis 1": partial(gather_elements_row, shape=(4, 5), picked=(4, 7), axis=1),
    "GatherElementsGrad: axis -1, rank 3, int32": partial(
        gather_elements_row, shape=(2, 3, 4), picked=(2, 2, 3), axis=-1, kind=np.int32
    ),
    "GatherElementsGrad: one axis": partial(gather_elements_row, shape=(6,), picked=(9,)),
    "GatherNDGrad": partial(gather_nd_row, shape=(4, 5, 3), indices=(6, 2)),
    "GatherNDGrad: whole index": partial(gather_nd_row, shape=(3, 4), indices=(2, 5, 2)),
    "GatherNDGrad: one batch axis": partial(
        gather_nd_row, shape=(2, 4, 5), indices=(2, 6, 1), batch=1
    ),
    "GatherNDGrad: one batch axis, whole index": partial(
        gather_nd_row, shape=(2, 4, 5), indices=(2, 3, 6, 2), batch=1
    ),
    "GatherNDGrad: two batch axes": partial(
        gather_nd_row, shape=(2, 3, 4, 5), indices=(2, 3, 1), batch=2
    ),
    "GatherNDGrad: int32": partial(gather_nd_row, shape=(4, 5), indices=(3, 1), kind=np.int32),
    "ShrunkenGather": partial(shrunken_row, shape=(6, 3), indices=[4, 0, 5]),
    "ShrunkenGather: axis 1": partial(shrunken_row, shape=(2, 6, 3), indices=[1, 1, 3], axis=1),
    "Trilu": partial(trilu_row, shape=(4, 5)),
    "Trilu: lower, k": partial(trilu_row, shape=(2, 4, 5), k=1, upper=0),
    "Trilu: upper, k -2": partial(trilu_row, shape=(5, 3), k=-2, upper=1),
    "PadAndUnflatten": pad_row,
    "PadAndUnflatten: vectors": partial(pad_row, rest=()),
    "PadAndUnflatten: two more axes": partial(pad_row, rest=(2, 3), shape_output=True),
    "FlattenAndUnpad": unpad_row,
    "FlattenAndUnpad: vectors": partial(unpad_row, rest=()),
    "FlattenAndUnpad: two more axes": partial(unpad_row, rest=(2, 3)),
}

TABLE = {name: partial(build, name) for name, build in _ROWS.items()}
