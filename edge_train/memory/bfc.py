"""onnxruntime's memory arena in numbers: best fit with coalescing, regions that double.

Follows BFCArena of onnxruntime with the settings of a CPU session. Used to tell how much memory a
run touches before anything runs; nothing is allocated here.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field

_UNIT = 256  # sizes are multiples of it
_FIRST_REGION = 1 << 20
_LARGEST_REGION = 1 << 30
_DEAD_BYTES = 128 << 20  # a chunk that leaves more than this is split in any case


@dataclass
class _Chunk:
    region: int
    start: int
    size: int
    free: bool = True
    before: _Chunk | None = field(default=None, repr=False)
    after: _Chunk | None = field(default=None, repr=False)

    def key(self) -> tuple[int, int, int]:
        return self.size, self.region, self.start


class Arena:
    """Allocations and frees by name; ``touched`` are the bytes that have ever been handed out."""

    def __init__(self) -> None:
        self._free: list[tuple[int, int, int]] = []  # by size, then address
        self._chunks: dict[tuple[int, int], _Chunk] = {}
        self._held: dict[str, _Chunk] = {}
        self._reached: list[int] = []  # by region: the end of what has been handed out
        self._next_region = _FIRST_REGION

    @property
    def touched(self) -> int:
        """Bytes of all regions up to the highest that was ever handed out."""
        return sum(self._reached)

    def allocate(self, name: str, size: int) -> None:
        """Takes the smallest free chunk that holds ``size`` bytes."""
        rounded = max(_UNIT, -(-size // _UNIT) * _UNIT)
        place = bisect_left(self._free, (rounded, -1, -1))
        if place == len(self._free):
            self._extend(rounded)
            place = bisect_left(self._free, (rounded, -1, -1))
        _, region, start = self._free.pop(place)
        chunk = self._chunks[region, start]
        if chunk.size >= 2 * rounded or chunk.size - rounded >= _DEAD_BYTES:
            self._split(chunk, rounded)
        chunk.free = False
        self._held[name] = chunk
        self._reached[region] = max(self._reached[region], start + min(rounded, chunk.size))

    def free(self, name: str) -> None:
        """Gives a chunk back and joins it with free neighbours."""
        chunk = self._held.pop(name)
        chunk.free = True
        for first, second in ((chunk, chunk.after), (chunk.before, chunk)):
            if first is not None and second is not None and first.free and second.free:
                self._join(first, second, chunk)
                chunk = first
        insort(self._free, chunk.key())

    def _extend(self, rounded: int) -> None:
        grown = rounded > self._next_region
        while rounded > self._next_region:
            self._next_region *= 2
        region = len(self._reached)
        self._add(_Chunk(region, 0, self._next_region))
        self._reached.append(0)
        if not grown:
            self._next_region = min(2 * self._next_region, _LARGEST_REGION)

    def _add(self, chunk: _Chunk) -> None:
        self._chunks[chunk.region, chunk.start] = chunk
        insort(self._free, chunk.key())

    def _split(self, chunk: _Chunk, size: int) -> None:
        rest = _Chunk(chunk.region, chunk.start + size, chunk.size - size, True, chunk, chunk.after)
        if chunk.after is not None:
            chunk.after.before = rest
        chunk.after, chunk.size = rest, size
        self._add(rest)

    def _join(self, first: _Chunk, second: _Chunk, new: _Chunk) -> None:
        """Joins two neighbours; the one that is not ``new`` stands in the list of free chunks."""
        listed = second if new is first else first
        del self._free[bisect_left(self._free, listed.key())]
        del self._chunks[second.region, second.start]
        first.size += second.size
        first.after = second.after
        if second.after is not None:
            second.after.before = first
