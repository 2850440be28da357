"""One tensor of a checkpoint: its description, and where its data is until someone asks for it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from edge_train import dtypes
from edge_train.checkpoint.builder import Data, blocks
from edge_train.checkpoint.source import Span


@dataclass(frozen=True, slots=True)
class Tensor:
    """Name, ONNX data type, dims and data; ``offset`` >= 0 is a place in the data file.

    A string tensor has ``strings`` instead of data. bfloat16, which NumPy lacks, exists as bytes
    of a file only: its array is float32.
    """

    name: str
    data_type: int
    dims: tuple[int, ...]
    data: Data | None = None
    doc_string: str | None = None
    offset: int = -1
    strings: tuple[str, ...] | None = None

    @staticmethod
    def of(name: str, array: np.ndarray[Any, Any]) -> Tensor:
        """A tensor that shares the memory of ``array``; TypeError for a dtype ONNX lacks."""
        if array.dtype.kind in "OU":
            strings = tuple(_text(name, item) for item in array.reshape(-1).tolist())
            return Tensor(name, dtypes.STRING, tuple(array.shape), strings=strings)
        return Tensor(name, dtypes.number_of(array.dtype), tuple(array.shape), array)

    @property
    def nbytes(self) -> int:
        """What the shape and the type ask for; only after ``validate``."""
        if self.data_type == dtypes.BFLOAT16:
            return math.prod(self.dims) * 2
        return math.prod(self.dims) * dtypes.NUMPY[self.data_type].itemsize

    def raw_bytes(self) -> bytes:
        """The values as little-endian bytes, the ``raw_data`` of ONNX; not of a string tensor."""
        return b"" if self.data is None else b"".join(blocks(self.data))

    def array(self) -> np.ndarray[Any, Any]:
        """A new writable aligned array with the values: of str objects for a string tensor."""
        if self.strings is not None:
            strings = np.empty(len(self.strings), object)
            strings[:] = self.strings
            return strings.reshape(self.dims)
        if self.data_type == dtypes.BFLOAT16:
            halves = Tensor(self.name, dtypes.UINT16, self.dims, self.data).array()
            return (halves.astype(np.uint32) << 16).view(np.float32)
        dtype = dtypes.NUMPY[self.data_type]
        if not isinstance(self.data, Span):
            return np.array(self.data, dtype).reshape(self.dims)
        array = np.empty(self.dims, dtype.newbyteorder("<"))
        raw = array.reshape(-1).view(np.uint8)
        if raw.size:
            self.data.read_into(raw.data)
        if dtype == np.bool_:
            np.minimum(raw, 1, out=raw)  # any other byte than 0 and 1 is no bool
        return np.asarray(array, dtype)


def _text(name: str, item: object) -> str:
    if not isinstance(item, str):
        raise TypeError(f"tensor '{name}' has a {type(item).__name__} among its items, only str")
    return item
