"""Sources: rows that can be asked for in any order, or batches that come in their own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
Indices: TypeAlias = NDArray[np.int64]
#: arrays in the order of the model's inputs, or by their names
Batch: TypeAlias = "tuple[Array, ...] | Mapping[str, Array]"


@runtime_checkable
class Rows(Protocol):
    """Rows by number. ``take`` gives a batch of the asked ones, in that order."""

    def __len__(self) -> int: ...
    def take(self, rows: Indices) -> Batch: ...


@dataclass(frozen=True)
class ArrayRows:
    """Rows of arrays (memory-mapped ones too), by input name, or in the order of the inputs.

    ``classes`` are names for the numbers in the last of a tuple of arrays, where it has names.
    ValueError where they differ in length or there are none.
    """

    columns: Mapping[str, Array] | tuple[Array, ...]
    classes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        lengths = {name: len(array) for name, array in self._named()}
        if not lengths or len(set(lengths.values())) != 1:
            raise ValueError(f"the data's arrays need one length, got {lengths or 'no arrays'}")

    def _named(self) -> list[tuple[str, Array]]:
        if isinstance(self.columns, Mapping):
            return list(self.columns.items())
        return [(f"array {index}", array) for index, array in enumerate(self.columns)]

    def __len__(self) -> int:
        return len(self._named()[0][1])

    def take(self, rows: Indices) -> Batch:
        """The rows, copied out of the arrays."""
        if isinstance(self.columns, Mapping):
            return {name: np.asarray(array[rows]) for name, array in self.columns.items()}
        return tuple(np.asarray(array[rows]) for array in self.columns)


@dataclass(frozen=True)
class ItemRows:
    """Rows of a dataset with ``__len__`` and ``__getitem__``, whose items are single rows.

    An item is a tuple in the order of the inputs, a mapping by their names, or one array.
    """

    dataset: Any

    def __len__(self) -> int:
        return len(self.dataset)

    def take(self, rows: Indices) -> Batch:
        """The items, stacked."""
        items = [self.dataset[int(row)] for row in rows]
        if isinstance(items[0], Mapping):
            return {name: np.stack([item[name] for item in items]) for name in items[0]}
        if not isinstance(items[0], (tuple, list)):
            items = [(item,) for item in items]
        return tuple(np.stack(column) for column in zip(*items, strict=True))


@dataclass(frozen=True)
class Subset:
    """Some rows of another source."""

    rows: Rows
    chosen: Indices

    def __len__(self) -> int:
        return len(self.chosen)

    def take(self, rows: Indices) -> Batch:
        """The rows, by their numbers within the subset."""
        return self.rows.take(self.chosen[rows])


@dataclass(frozen=True)
class Batches:
    """Batches in their own order: an iterable of them, or a function from the epoch to one.

    A resumed run goes through the batches of its epoch again, up to where it was: the same bits
    follow only if the iterable gives the same batches again. An iterator can be gone through once:
    it is one epoch.
    """

    batches: Iterable[Any] | Callable[[int], Iterable[Any]]

    def epoch(self, number: int) -> Iterator[Batch]:
        """The batches of epoch ``number``, counted from 0."""
        made = self.batches(number) if callable(self.batches) else self.batches
        for batch in made:
            yield _as_batch(batch)


Source: TypeAlias = "Rows | Batches"


def source_of(data: Any) -> Source:
    """The source for what a user passes.

    A source: itself. A path: ``open_path``. One array, a tuple or a mapping of arrays (or paths
    of .npy files): their rows. A list, or another object with ``__len__`` and ``__getitem__``:
    its items are rows. Any other iterable, or a function of the epoch: batches. ``Batches(list)``
    says that a list is one of batches.

    Raises TypeError for anything else, and what the readers raise.
    """
    if isinstance(data, (Rows, Batches)):
        return data
    if isinstance(data, (str, os.PathLike)):
        from edge_train.data.files import open_path

        return open_path(data)
    if isinstance(data, np.ndarray):
        return ArrayRows((data,))
    if isinstance(data, Mapping):
        return ArrayRows({name: _column(value) for name, value in data.items()})
    if isinstance(data, tuple):
        return ArrayRows(tuple(_column(value) for value in data))
    if hasattr(data, "__len__") and hasattr(data, "__getitem__"):
        return ItemRows(data)
    if isinstance(data, Iterable) or callable(data):
        return Batches(data)
    raise TypeError(
        f"data: expected arrays, a dataset, an iterable of batches or a path, got "
        f"{type(data).__name__}"
    )


def _column(value: Any) -> Array:
    if isinstance(value, (str, os.PathLike)):
        mapped: Array = np.load(value, mmap_mode="r", allow_pickle=False)
        return mapped
    array = np.asarray(value)
    if array.ndim == 0 or array.dtype == object:
        raise TypeError(f"data: expected arrays of one row per sample, got {type(value).__name__}")
    return array


def _as_batch(batch: Any) -> Batch:
    if isinstance(batch, Mapping):
        return {name: np.asarray(value) for name, value in batch.items()}
    if isinstance(batch, Sequence):
        return tuple(np.asarray(value) for value in batch)
    return (np.asarray(batch),)


def rows_in(batch: Batch) -> int:
    """Rows of a batch: the first axis of its first array."""
    first = next(iter(batch.values())) if isinstance(batch, Mapping) else batch[0]
    return len(first)
