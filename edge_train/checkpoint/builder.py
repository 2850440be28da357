"""A FlatBuffers builder that keeps tensor data by reference.

It works back to front and shares vtables exactly as the C++ FlatBufferBuilder does, so the bytes
are those of the reference; but it collects pieces instead of copying into one growing buffer.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Union

import numpy as np

from edge_train.checkpoint.source import Span

#: tensor bytes: an array in memory or a span of an open file
Data = Union[Span, "np.ndarray[Any, Any]"]

_U32 = struct.Struct("<I")
_VTABLE_HEAD = struct.Struct("<HH")


class Field(NamedTuple):
    """A table field: ``form`` is a struct code, or "" for a reference to an earlier object."""

    slot: int
    form: str
    value: int | float


class Builder:
    """Objects are appended towards the front; an object is named by its distance from the end."""

    def __init__(self) -> None:
        self.size = 0
        self._pieces: list[bytes | Data] = []
        self._align = 1
        self._vtables: dict[bytes, int] = {}

    def text(self, value: str) -> int:
        """A string."""
        data = value.encode("utf-8")
        self._pad(len(data) + 1, 4)
        self._push(_U32.pack(len(data)) + data + b"\0")
        return self.size

    def references(self, objects: Sequence[int]) -> int:
        """A vector of references."""
        self._pad(0, 4)
        end = self.size
        # element i stands at distance end + 4 * (count - i) and points back towards the end
        count = len(objects)
        offsets = (end + 4 * (count - i) - target for i, target in enumerate(objects))
        self._push(struct.pack(f"<I{count}I", count, *offsets))
        return self.size

    def int64s(self, values: Sequence[int]) -> int:
        """A vector of int64."""
        # an empty vector is not moved to a multiple of 8, as in the reference
        self._pad(8 * len(values), 8 if values else 4)
        self._push(struct.pack(f"<I{len(values)}q", len(values), *values))
        return self.size

    def data(self, data: Data) -> int:
        """A byte vector; the bytes are read when the file is written."""
        self._pad(data.nbytes, 4)
        self._pieces.append(data)
        self.size += data.nbytes
        self._push(_U32.pack(data.nbytes))
        return self.size

    def table(self, fields: Sequence[Field]) -> int:
        """A table; the order of ``fields`` is their order in memory, from the end."""
        start = self.size
        places: dict[int, int] = {}
        for slot, form, value in fields:
            packer = struct.Struct("<" + (form or "I"))
            self._pad(0, packer.size)
            stored = value if form else self.size + 4 - int(value)
            self._push(packer.pack(stored))
            places[slot] = self.size
        self._pad(0, 4)
        head = self.size + 4
        length = 4 + 2 * (max(places, default=-1) + 1)
        entries = [head - places[s] if s in places else 0 for s in range((length - 4) // 2)]
        vtable = struct.pack(f"<HH{len(entries)}H", length, head - start, *entries)
        known = self._vtables.get(vtable)
        at = head + length if known is None else known
        self._push(struct.pack("<i", at - head))
        if known is None:
            self._vtables[vtable] = at
            self._push(vtable)
        return head

    def finish(self, root: int, identifier: bytes) -> None:
        """The head of the file."""
        self._pad(8, self._align)
        self._push(_U32.pack(self.size + 8 - root) + identifier)

    def blocks(self) -> Iterator[bytes | memoryview]:
        """The file front to back."""
        for piece in reversed(self._pieces):
            if isinstance(piece, bytes):
                yield piece
            else:
                yield from blocks(piece)

    def _push(self, data: bytes) -> None:
        self._pieces.append(data)
        self.size += len(data)

    def _pad(self, length: int, align: int) -> None:
        """Make the position aligned once ``length`` more bytes are there."""
        self._align = max(self._align, align)
        gap = -(self.size + length) % align
        if gap:
            self._push(bytes(gap))


def blocks(data: Data) -> Iterator[memoryview]:
    """The little-endian bytes of ``data``, without a copy where the memory has them already."""
    if isinstance(data, Span):
        yield from data.blocks()
    elif data.nbytes:
        little = np.ascontiguousarray(data).astype(data.dtype.newbyteorder("<"), copy=False)
        yield little.reshape(-1).view(np.uint8).data
