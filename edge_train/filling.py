"""Filling a nominal state piece by piece: over a slow link, in any order, across crashes.

A journal keeps the pieces in a file: one line of JSON about the transfer, then for each piece its
offset, count and the CRC-32 of all of it (u64, u64, u32, little-endian) and its bytes. What follows
a damaged or half-written piece is cut off when the journal is opened again: those elements are
missing.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from edge_train import atomic
from edge_train.counts import whole_number
from edge_train.host_arrays import host_array
from edge_train.placement import ParameterSlot, Room

_RECORD, _PLACE = struct.Struct("<QQI"), struct.Struct("<QQ")
_HEADER_LIMIT = 4096
_STEP = 1 << 16  # elements read from a journal at a time
ALGORITHMS = ("crc32", "sha256")


@dataclass(frozen=True)
class Progress:
    """How far a fill is: elements there, elements in all, and the ranges still missing."""

    received: int
    total: int
    missing: tuple[tuple[int, int], ...]

    @property
    def complete(self) -> bool:
        """Whether nothing is missing."""
        return not self.missing


def checksum_of(arrays: Iterable[np.ndarray], algorithm: str = "crc32") -> str:
    """The checksum of the arrays' float32 bytes, one after the other: "crc32:89abcdef".

    Errors: ValueError for another algorithm than "crc32" and "sha256".
    """
    if algorithm not in ALGORITHMS:
        raise ValueError(f"checksum '{algorithm}': expected one of {list(ALGORITHMS)}")
    raws = (np.ascontiguousarray(a, "<f4").reshape(-1).view(np.uint8).data for a in arrays)
    if algorithm == "crc32":
        crc = 0
        for raw in raws:
            crc = zlib.crc32(raw, crc)
        return f"crc32:{crc:08x}"
    import hashlib  # here: the OpenSSL behind it takes megabytes

    digest = hashlib.sha256()
    for raw in raws:
        digest.update(raw)
    return f"sha256:{digest.hexdigest()}"


def _algorithm(checksum: str) -> str:
    algorithm, _, digits = checksum.partition(":") if isinstance(checksum, str) else ("", "", "")
    if algorithm not in ALGORITHMS or not digits:
        raise ValueError(
            f"checksum {checksum!r}: expected 'crc32:...' or 'sha256:...', as "
            "parameters_checksum gives it"
        )
    return algorithm


class Filling:
    """The pieces of one flat buffer that came so far, in ``room``."""

    def __init__(
        self,
        room: Room,
        layout: Sequence[ParameterSlot],
        checksum: str | None = None,
        journal: str | os.PathLike[str] | None = None,
    ) -> None:
        if checksum is not None:
            _algorithm(checksum)
        self.room = room
        self._layout = layout
        self._starts = [slot.offset for slot in layout]
        self._total = sum(slot.size for slot in layout)
        self._checksum = checksum
        self._there: list[tuple[int, int]] = []  # sorted, apart from each other
        self._journal: _Journal | None = None
        if journal is not None:
            self._journal = _Journal(os.path.abspath(journal), self._transfer())
            for offset, values in self._journal.replay(self._total):
                self._place(offset, values)

    @property
    def progress(self) -> Progress:
        """How far the fill is."""
        missing, at = [], 0
        for start, stop in self._there:
            if start > at:
                missing.append((at, start))
            at = stop
        if at < self._total:
            missing.append((at, self._total))
        left = sum(stop - start for start, stop in missing)
        return Progress(self._total - left, self._total, tuple(missing))

    def put(self, offset: int, chunk: Any, checksum: str | None) -> None:
        """Checks one piece and puts it in its place, the journal first."""
        values, offset = _floats(chunk), whole_number("offset", offset)
        if offset < 0 or offset + values.size > self._total:
            raise ValueError(
                f"a piece of {values.size} elements from element {offset} on lies outside of the "
                f"buffer, which has {self._total}"
            )
        if checksum is not None:
            got = checksum_of([values], _algorithm(checksum))
            if got != checksum.lower():
                raise ValueError(
                    f"the piece from element {offset} on was damaged on its way: expected "
                    f"{checksum}, got {got}; send it again"
                )
        if self._journal is not None:
            self._journal.append(offset, values)
        self._place(offset, values)

    def finish(self) -> None:
        """ValueError, and all pieces forgotten, if the whole is not what was announced."""
        if self._checksum is None:
            return
        homes = (self.room.homes[slot.name] for slot in self._layout)
        got = checksum_of(homes, _algorithm(self._checksum))
        if got != self._checksum.lower():
            self._there.clear()
            if self._journal is not None:
                self._journal.clear()
            raise ValueError(
                f"all {self._total} elements came, but the buffer is not the one announced: "
                f"expected {self._checksum}, got {got}; send all pieces again"
            )

    def _transfer(self) -> dict[str, Any]:
        names = json.dumps([(slot.name, list(slot.shape)) for slot in self._layout])
        return {
            "edge_train": "fill",
            "elements": self._total,
            "layout": f"{zlib.crc32(names.encode()):08x}",
            "checksum": self._checksum,
        }

    def _place(self, offset: int, values: np.ndarray) -> None:
        done = 0
        while done < values.size:
            slot = self._layout[bisect_right(self._starts, offset + done) - 1]
            at = offset + done - slot.offset
            part = values[done : done + slot.size - at]
            self.room.homes[slot.name].reshape(-1)[at : at + part.size] = part
            done += part.size
        self._note(offset, offset + values.size)

    def _note(self, start: int, stop: int) -> None:
        if start == stop:
            return
        apart = [(a, b) for a, b in self._there if b < start or a > stop]
        touching = [(a, b) for a, b in self._there if not (b < start or a > stop)]
        low = min([start, *(a for a, _ in touching)])
        high = max([stop, *(b for _, b in touching)])
        self._there = sorted([*apart, (low, high)])


def _floats(chunk: Any) -> np.ndarray:
    if isinstance(chunk, (bytes, bytearray, memoryview)):
        raw = memoryview(chunk).cast("B")
        if len(raw) % 4:
            raise ValueError(f"a piece of {len(raw)} bytes: expected a multiple of 4 (float32)")
        return np.frombuffer(raw, "<f4")
    values = host_array(chunk, "the piece")
    if values.dtype != np.float32:
        raise TypeError(f"the piece is {values.dtype}, expected float32")
    return values.reshape(-1)


class _Journal:
    """The file of pieces, opened for each of them: a transfer may be given up at any time."""

    def __init__(self, path: str, transfer: dict[str, Any]) -> None:
        self._path = path
        self._header = json.dumps(transfer).encode() + b"\n"
        self._end = len(self._header)  # of the whole pieces
        if not os.path.exists(path) or self._is_cut_off():
            self.clear()

    def _is_cut_off(self) -> bool:
        """Whether the file ends in its first line; ValueError if that is another one."""
        with open(self._path, "rb") as file:
            line = file.readline(_HEADER_LIMIT)
        if line == self._header:
            return False
        if line.endswith(b"\n") or not self._header.startswith(line):
            raise ValueError(
                f"'{self._path}' is not the journal of this transfer: it begins with "
                f"{line[:200]!r}, expected {self._header[:200]!r}; take another file, or delete it"
            )
        return True

    def clear(self) -> None:
        """Forgets all pieces."""
        with open(self._path, "wb") as file:
            file.write(self._header)
            _sync(file)
        self._end = len(self._header)
        atomic.sync_folder(os.path.dirname(self._path))

    def replay(self, total: int) -> Iterator[tuple[int, np.ndarray]]:
        """The whole pieces, in parts; the file ends after the last of them then."""
        end = len(self._header)
        with open(self._path, "r+b") as file:
            file.seek(end)
            while True:
                head = file.read(_RECORD.size)
                if len(head) < _RECORD.size:
                    break
                offset, count, crc = _RECORD.unpack(head)
                start = zlib.crc32(head[: _PLACE.size])
                if offset + count > total or not _is_whole(file, count, start, crc):
                    break
                file.seek(end + _RECORD.size)
                for done in range(0, count, _STEP):
                    data = file.read(4 * min(_STEP, count - done))
                    yield offset + done, np.frombuffer(data, "<f4")
                end += _RECORD.size + 4 * count
            file.truncate(end)
        self._end = end

    def append(self, offset: int, values: np.ndarray) -> None:
        """One piece, on the disk when this returns.

        Over what a piece left that could not be written: the next ones are found behind it.
        """
        raw = np.ascontiguousarray(values, "<f4").view(np.uint8).data
        place = _PLACE.pack(offset, values.size)
        with open(self._path, "r+b") as file:
            file.seek(self._end)
            file.write(place + zlib.crc32(raw, zlib.crc32(place)).to_bytes(4, "little"))
            file.write(raw)
            _sync(file)
        self._end += _RECORD.size + len(raw)


def _is_whole(file: BinaryIO, count: int, found: int, crc: int) -> bool:
    for done in range(0, count, _STEP):
        asked = 4 * min(_STEP, count - done)
        data = file.read(asked)
        if len(data) < asked:
            return False
        found = zlib.crc32(data, found)
    return found == crc


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
