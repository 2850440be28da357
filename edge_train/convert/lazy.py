"""Tensor data that is computed block by block while it is written: casts and weighted means.

Each is a Source, so that a Span of it stands wherever the data of a file does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from edge_train import dtypes
from edge_train.checkpoint.builder import Data
from edge_train.checkpoint.source import Source, Span
from edge_train.checkpoint.tensor import Tensor
from edge_train.errors import CheckpointCorrupt, CheckpointError

Array = np.ndarray[Any, Any]
#: element count of one block of work
BLOCK = 64 * 1024


class Elements:
    """The values of a tensor by element index; bfloat16 comes as float32."""

    def __init__(self, tensor: Tensor) -> None:
        self.name = tensor.name
        self._data = tensor.data
        self._half = tensor.data_type == dtypes.BFLOAT16
        stored = dtypes.UINT16 if self._half else tensor.data_type
        self._stored = dtypes.NUMPY[stored].newbyteorder("<")

    def read(self, start: int, count: int) -> Array:
        """A new aligned array of elements ``[start, start + count)``."""
        values = np.empty(count, self._stored)
        raw = values.view(np.uint8).data
        if isinstance(self._data, Span):
            at = self._data.offset + start * self._stored.itemsize
            if count:
                self._data.source.read_into(at, raw)
        elif self._data is not None:
            values[:] = np.asarray(self._data).reshape(-1)[start : start + count]
        return _widened(values) if self._half else values


def _widened(halves: Array) -> Array:
    return (halves.astype(np.uint32) << 16).view(np.float32)


def _halves(values: Array) -> Array:
    """bfloat16 as uint16, rounded to nearest, ties to even; a NaN stays one."""
    with np.errstate(over="ignore"):
        bits = values.astype(np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(values), bits >> 16 | 0x40, rounded).astype(np.uint16)


class Streamed(Source):
    """A source of which ``read_into`` is all that a subclass defines."""

    def read(self, offset: int, count: int) -> bytes:
        data = bytearray(count)
        self.read_into(offset, memoryview(data))
        return bytes(data)


class Computed(Streamed):
    """``count`` elements of ``dtype`` made by ``block(start, count)``, which returns an array."""

    def __init__(
        self, label: str, dtype: np.dtype[Any], count: int, block: Callable[[int, int], Array]
    ) -> None:
        self._dtype = dtype.newbyteorder("<")
        self._block = block
        super().__init__(label, count * dtype.itemsize)

    def read_into(self, offset: int, view: memoryview) -> None:
        size = self._dtype.itemsize
        if offset % size or len(view) % size:
            raise ValueError(f"{self.label}: bytes {offset} + {len(view)} cut an element in two")
        first, count = offset // size, len(view) // size
        for start in range(0, count, BLOCK):
            length = min(BLOCK, count - start)
            values = self._block(first + start, length).astype(self._dtype, copy=False)
            view[start * size : (start + length) * size] = values.view(np.uint8).data


def computed(like: Tensor, data_type: int, block: Callable[[int, int], Array]) -> Tensor:
    """A tensor of the name and shape of ``like`` whose elements ``block`` makes."""
    dtype = dtypes.NUMPY[data_type]
    count = int(np.prod(like.dims, dtype=np.int64))
    source = Computed(f"'{like.name}'", dtype, count, block)
    data: Data = Span(source, 0, count * dtype.itemsize)
    return replace(like, data_type=data_type, data=data, offset=-1)


def cast(tensor: Tensor, data_type: int) -> Tensor:
    """The tensor as another float type, rounded to nearest; itself where it is that type."""
    if tensor.data_type == data_type:
        return tensor
    elements = Elements(tensor)
    if data_type == dtypes.BFLOAT16:
        halves = computed(tensor, dtypes.UINT16, lambda *at: _halves(elements.read(*at)))
        return replace(halves, data_type=data_type)

    def block(start: int, count: int) -> Array:
        with np.errstate(over="ignore"):  # beyond float16 it is infinity, as in a Cast node
            return elements.read(start, count).astype(dtypes.NUMPY[data_type])

    return computed(tensor, data_type, block)


def weighted_mean(
    tensors: Sequence[Tensor],
    weights: Sequence[float],
    labels: Sequence[str],
    is_variance: bool = False,
) -> Tensor:
    """sum(w_i x_i) / sum(w_i) of float tensors, summed in float64 in their order.

    Weights are >= 0, so that a mean of values >= 0 is never below 0. CheckpointCorrupt, naming
    tensor and source, for a value that is not finite, or below 0 in a variance.
    """
    total = sum(weights)
    shares = [weight / total for weight in weights]
    readers = [Elements(tensor) for tensor in tensors]

    def block(start: int, count: int) -> Array:
        mean = np.zeros(count, np.float64)
        for reader, share, label in zip(readers, shares, labels, strict=True):
            values = reader.read(start, count)
            if not np.isfinite(values).all():
                raise CheckpointCorrupt(
                    f"{label}: tensor '{reader.name}' has a NaN or infinity, which would be in the "
                    "average too; leave this one out"
                )
            if is_variance and (values < 0).any():
                raise CheckpointCorrupt(
                    f"{label}: tensor '{reader.name}' is a variance and has values below 0; leave "
                    "this one out"
                )
            mean += share * values.astype(np.float64)
        return mean

    first = tensors[0]
    wide = first.data_type == dtypes.BFLOAT16
    return computed(first, dtypes.FLOAT if wide else first.data_type, block)


def is_float(tensor: Tensor) -> bool:
    """Whether a mean of such values makes sense."""
    return tensor.data_type in (dtypes.FLOAT, dtypes.DOUBLE, dtypes.FLOAT16, dtypes.BFLOAT16)


def refuse_unequal(tensors: Sequence[Tensor], labels: Sequence[str]) -> None:
    """CheckpointError naming the first tensor whose values are not those of the first one."""
    first = tensors[0]
    for tensor, label in zip(tensors[1:], labels[1:], strict=True):
        if not _equal(first, tensor):
            raise CheckpointError(
                f"tensor '{first.name}' is {dtypes.name_of(first.data_type)}, which has no "
                f"average, and differs between {labels[0]} and {label}; keep the first one's "
                "(statistics='keep')"
            )


def _equal(a: Tensor, b: Tensor) -> bool:
    if a.strings is not None or b.strings is not None:
        return a.strings == b.strings
    one, two = Elements(a), Elements(b)
    count = int(np.prod(a.dims, dtype=np.int64))
    return all(
        np.array_equal(one.read(at, min(BLOCK, count - at)), two.read(at, min(BLOCK, count - at)))
        for at in range(0, count, BLOCK)
    )
