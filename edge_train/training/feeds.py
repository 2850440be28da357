"""From a batch of a source to what a graph is fed: names, dtypes, shapes, scaling."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_train import dtypes
from edge_train.data.sources import Batch
from edge_train.errors import DataError
from edge_train.graph import ir
from edge_train.training.order import Reader

Array = NDArray[Any]


@dataclass(frozen=True)
class Feeder:
    """Turns batches into feeds for ``inputs``, the user inputs of a graph.

    ``names`` says which array of the data an input takes (default: the array of the same name, or
    the arrays in order). An array that is not of the input's dtype is cast where that keeps what
    the numbers are (uint8 to float32, not float32 to int64), multiplied by ``scale[input]``, and
    reshaped where only the rows' shape differs ((n, 8, 8) for (n, 1, 8, 8)). ``micro_batch`` is how
    many rows go through the graph at once, None for all.

    Rows are axis 0 of the data; an input that has them elsewhere (time, batch, features) gets
    them moved there if the batches are made of single rows (``stacked``).
    """

    inputs: tuple[ir.Value, ...]
    names: Mapping[str, str] = field(default_factory=dict)
    scale: Mapping[str, float] = field(default_factory=dict)
    micro_batch: int | None = None
    stacked: bool = True

    def __post_init__(self) -> None:
        known = [value.name for value in self.inputs]
        for option, given in (("inputs", self.names), ("scale", self.scale)):
            for name in given:
                if name not in known:
                    raise DataError(
                        f"{option}: the model has no input '{name}'{_near(name, known)}"
                    )
        for value in self.inputs:
            dtype, factor = _dtype(value), self.scale.get(value.name, 1)
            if dtype is not None and dtype.kind in "iub" and dtype.type(factor) != factor:
                raise DataError(
                    f"scale: the input '{value.name}' takes {dtype}, which {factor} would make 0 "
                    "or round; leave it out"
                )

    def for_graph(self, inputs: tuple[ir.Value, ...]) -> Feeder:
        """The feeder for another graph of the model, which may take fewer inputs."""
        own = {value.name for value in inputs}
        names = {name: array for name, array in self.names.items() if name in own}
        scale = {name: factor for name, factor in self.scale.items() if name in own}
        return replace(self, inputs=inputs, names=names, scale=scale)

    @cached_property
    def axes(self) -> dict[str, int]:
        """The axis of the rows, by input: where the size stands that all inputs share."""
        size = self._shared_size
        return {
            value.name: value.dims.index(size) if value.dims and size in value.dims else 0
            for value in self.inputs
        }

    @cached_property
    def _shared_size(self) -> int | str | None:
        """The number of rows as the inputs' dims have it: that of the target if all have it."""
        dims = [[d for d in value.dims or () if d and d != -1] for value in self.inputs]
        shared = set(dims[0]).intersection(*dims[1:]) if dims else set()
        target = self.inputs[-1].dims if self.inputs else None
        if target and target[0] in shared:
            return target[0]
        return min((d for d in shared if isinstance(d, str)), default=None)

    def rows(self, feeds: Mapping[str, Array]) -> int:
        """How many rows are fed."""
        return max(
            (array.shape[self.axes[name]] for name, array in feeds.items() if array.ndim), default=1
        )

    def part(self, feeds: Mapping[str, Array], start: int, stop: int) -> dict[str, Array]:
        """Rows ``start`` to ``stop`` of what is fed; inputs without rows as they are."""
        rows = self.rows(feeds)
        found = dict(feeds)
        for name, array in feeds.items():
            axis = self.axes[name]
            if array.ndim > axis and array.shape[axis] == rows:
                place = (slice(None),) * axis + (slice(start, stop),)
                found[name] = np.ascontiguousarray(array[place])
        return found

    @property
    def fixed_rows(self) -> int | None:
        """The number of rows that the graph takes, where it takes no other."""
        return self._shared_size if isinstance(self._shared_size, int) else None

    def for_batches(self, reader: Reader) -> Feeder:
        """The feeder for batches of ``reader``, with the micro-batch that a fixed size asks for.

        ValueError where the batches cannot be made of it.
        """
        self = replace(self, stacked=reader.rows is not None)
        size = self.fixed_rows
        if size is None:
            return self
        if self.micro_batch not in (None, size):
            raise ValueError(f"micro_batch: the model takes {size} rows at once, no other number")
        if reader.rows is None:
            return replace(self, micro_batch=size)
        last = 0 if reader.drop_last else reader.rows % reader.batch_size
        if reader.batch_size % size or last % size:
            raise ValueError(
                f"the model takes {size} rows at once, batches are of {reader.batch_size} rows, "
                f"the last of {last}; choose a batch_size that is a multiple, with drop_last"
            )
        return replace(self, micro_batch=size)

    def feed(self, batch: Batch) -> dict[str, Array]:
        """The arrays by input name; DataError names the input that cannot be made."""
        return {
            value.name: self._fitted(value, array)
            for value, array in zip(self.inputs, self._columns(batch), strict=True)
        }

    def _columns(self, batch: Batch) -> Sequence[Array]:
        if isinstance(batch, Mapping):
            named = [self.names.get(value.name, value.name) for value in self.inputs]
            if not self.names and not set(named) & set(batch) and len(batch) == len(named):
                return list(batch.values())  # no name in common: in order, as a tuple
            missing = [name for name in named if name not in batch]
            if missing:
                raise DataError(
                    f"the data has no {missing}; it has {list(batch)}. Say which array each input "
                    f"takes: inputs = {{{', '.join(f'{v.name} = ...' for v in self.inputs)}}}"
                )
            return [batch[name] for name in named]
        if len(batch) != len(self.inputs):
            raise DataError(
                f"a batch has {len(batch)} arrays, the model's inputs are "
                f"{[value.name for value in self.inputs]}"
            )
        return batch

    def _fitted(self, value: ir.Value, array: Array) -> Array:
        dtype = _dtype(value)
        factor = self.scale.get(value.name)
        if dtype is not None and array.dtype != dtype:
            if not _keeps_meaning(array.dtype, dtype) and not _is_whole(array, dtype):
                raise DataError(
                    f"input '{value.name}' takes {dtype}, the data is {array.dtype}: it cannot be "
                    "cast without loss; convert it"
                )
            array = array.astype(dtype)
        if factor is not None:
            array = array * array.dtype.type(factor)
        array = _reshaped(value, array)
        axis = self.axes[value.name]
        if axis and self.stacked:
            array = np.moveaxis(array, 0, axis)
        return np.ascontiguousarray(array)


def _dtype(value: ir.Value) -> np.dtype[Any] | None:
    return None if value.elem_type is None else dtypes.NUMPY.get(value.elem_type)


def _keeps_meaning(given: np.dtype[Any], asked: np.dtype[Any]) -> bool:
    if given.kind in "iub" and asked.kind in "iu":
        return True  # labels: the graph's own check knows their range
    return np.can_cast(given, asked, "same_kind")


def _is_whole(array: Array, asked: np.dtype[Any]) -> bool:
    """Whole numbers written as floats, as np.savetxt and pandas do with labels."""
    if array.dtype.kind != "f" or asked.kind not in "iu":
        return False
    return bool((np.abs(array) < 2**53).all() and (array == np.rint(array)).all())


def _reshaped(value: ir.Value, array: Array) -> Array:
    dims = value.dims
    if dims is None or array.ndim == 0 or len(dims) == array.ndim:
        return array
    sizes = dims[1:]
    if not dims or not all(isinstance(size, int) and size > 0 for size in sizes):
        return array
    known = [int(size) for size in sizes if isinstance(size, int)]
    row = math.prod(array.shape[1:])
    return array.reshape(len(array), *known) if math.prod(known) == row else array


def holes(feeds: Mapping[str, Array]) -> str:
    """Words on the inputs that hold a NaN or infinity themselves; none where none does."""
    bad = {
        name: int((~np.isfinite(array)).sum())
        for name, array in feeds.items()
        if array.dtype.kind == "f" and not np.isfinite(array).all()
    }
    return "".join(f"; the data of '{name}' has {count} such" for name, count in bad.items())


def _near(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean '{close[0]}'?" if close else f"; it has {known}"
