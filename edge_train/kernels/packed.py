"""AdamW's moments in 8 bits each: what is stored, and how it is rounded.

The buffers are cut into blocks of BLOCK elements, anew at every parameter. With s = sqrt(v), a
block stores the largest |r| of the ratios r = m / (s + TINY) and the largest s, and for every
element

* ``ratio``: 128 + 127 r / max|r|, that is 1 to 255. The ratio is what AdamW moves a weight by: all
  of a block are of one size, m is not, so 8 bits are spent where they matter, and an s that is
  rounded to nothing takes its m along (m / eps would be a leap);
* ``root``: s / max s as a float of 4 exponent and 4 mantissa bits: 255 for 1, 0 for 1.06 * 2^-16,
  which stands for everything below it too.

v changes by 0.1 % a step, far less than a code: rounded to nearest it would stand still. A value is
rounded up with the probability of its fraction instead. The dice are additive recurrences over the
steps (Roberts' R2 sequence: one in the high, one in the low bits of a 32-bit number), whose errors
stay bounded where those of random dice would add up. They need no state, so a resumed run repeats
them.

``encode`` inverts ``decode`` exactly: the maxima are found again because the largest element always
has the largest code, max|r| because it has 11 mantissa bits only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_train.kernels.square_root import sqrt

Floats = NDArray[np.float32]
Codes = NDArray[np.uint8]

BLOCK = 256
RATIO_TOP, RATIO_ZERO = 127, 128
ROOT_SHIFT = 19  # 23 mantissa bits, 4 of them stay
ROOT_REST = (1 << ROOT_SHIFT) - 1
ROOT_LOW = (127 << 4) - 255  # what 1.0 is shifted to, less its code
TINY = 2.0**-46
LEAST_RATIO = 2.0**-30  # a block of smaller ones moves no weight: zeros
LEAST_ROOT = TINY  # the smallest root of a block is then 2^-62, whose square is a normal number
NUDGE = 1 + 2.0**-22  # the largest element reaches the largest code in spite of rounding
COARSE = 0x7FFFF000
_STEADY = 1 + 2.0**-14  # more than encode's rounding, less than the last bit of COARSE
STRIDE = 0x9E335051  # from element to element: the golden section, the root of 2
_TURN = 0xC1448F09  # from step to step: 1/p and 1/p^2 of the plastic number p
#: the dice of a block's elements, but for what step and block add
TABLE = (np.arange(BLOCK, dtype=np.uint32) * np.uint32(STRIDE)).view(np.int32)


def seed(step: int) -> int:
    """What step number ``step`` adds to the dice of all elements."""
    return step * _TURN & 0xFFFFFFFF


def block_bounds(sizes: Sequence[int]) -> NDArray[np.int64]:
    """Where the blocks of parameters of these sizes begin, and the end."""
    bounds = [np.zeros(1, np.int64)]
    end = 0
    for size in sizes:
        bounds.append(np.append(np.arange(end + BLOCK, end + size, BLOCK), end + size))
        end += size
    return np.unique(np.concatenate(bounds).astype(np.int64))  # without the empty ones


@dataclass
class Packed:
    """The moments of a whole buffer; zeros at first."""

    bounds: NDArray[np.int64]  # of the blocks
    ratio: Codes = field(init=False)
    root: Codes = field(init=False)
    ratio_max: Floats = field(init=False)
    root_max: Floats = field(init=False)

    def __post_init__(self) -> None:
        size, blocks = int(self.bounds[-1]), len(self.bounds) - 1
        # Zeros take no memory before they are written; under a maximum of 0 any code is 0.
        self.ratio, self.root = np.zeros(size, np.uint8), np.zeros(size, np.uint8)
        self.ratio_max, self.root_max = np.zeros(blocks, np.float32), np.zeros(blocks, np.float32)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        arrays: tuple[NDArray[Any], ...] = (self.ratio, self.root, self.ratio_max, self.root_max)
        return sum(array.nbytes for array in arrays) + self.bounds.nbytes

    def parts(self, size: int, within: slice | None = None) -> tuple[slice, ...]:
        """The whole, or ``within``, in parts of whole blocks of at most ``size`` elements."""
        whole = within if within is not None else slice(0, int(self.bounds[-1]))
        return tuple(self._parts(size, whole.start, whole.stop))

    def _parts(self, size: int, start: int, end: int) -> Iterator[slice]:
        while start < end:
            reach = np.searchsorted(self.bounds, start + max(size, BLOCK), "right") - 1
            stop = min(int(self.bounds[reach]), end)
            yield slice(start, stop)
            start = stop

    def blocks(self, at: slice) -> tuple[int, int]:
        """First and last + 1 of the blocks that make up ``at``, which ends at their bounds."""
        first, last = np.searchsorted(self.bounds, (at.start, at.stop))
        return int(first), int(last)

    def sizes(self, first: int, last: int) -> NDArray[np.intp]:
        """Elements of each block; of the width that NumPy counts in."""
        return np.diff(self.bounds[first : last + 1]).astype(np.intp)

    def starts(self, first: int, last: int, origin: int) -> NDArray[np.intp]:
        """Where each block begins, counted from the element ``origin``."""
        return (self.bounds[first:last] - origin).astype(np.intp)

    def decode(self, at: slice) -> tuple[Floats, Floats]:
        """m and v of a part as new float32 arrays."""
        ratio, root = self._decode(at)
        return ratio * (root + np.float32(TINY)), root * root

    def _decode(self, at: slice) -> tuple[Floats, Floats]:
        first, last = self.blocks(at)
        sizes = self.sizes(first, last)
        steps = self.ratio_max[first:last] / np.float32(RATIO_TOP)
        ratio = (self.ratio[at].astype(np.int32) - RATIO_ZERO).astype(np.float32)
        ratio *= np.repeat(steps, sizes)
        codes = self.root[at].astype(np.int32)
        root: Floats = ((codes + ROOT_LOW) << ROOT_SHIFT).view(np.float32)
        root *= np.repeat(self.root_max[first:last], sizes)
        return ratio, root

    def encode(self, at: slice, m: Floats, v: Floats) -> None:
        """Stores m and v (flat) of a part, rounded to nearest; exact for what decode returned."""
        root: Floats = sqrt(v)
        ratio: Floats = m / (root + np.float32(TINY))
        half = np.int32(1 << (ROOT_SHIFT - 1))
        self.store(at, ratio * np.float32(_STEADY), ratio, root, np.float32(0), half)

    def store(
        self, at: slice, measured: Floats, ratio: Floats, root: Floats, up: Any, root_up: Any
    ) -> None:
        """Codes of ratios and roots.

        ``measured`` is what the maximum of the ratios is taken of; ``up`` is added before rounding
        to nearest, ``root_up`` before rounding down.
        """
        first, last = self.blocks(at)
        if first == last:
            return
        starts, sizes = self.starts(first, last, at.start), self.sizes(first, last)
        top = np.maximum.reduceat(np.abs(measured), starts)
        top = (top.view(np.int32) & COARSE).view(np.float32)
        top[top < LEAST_RATIO] = 0
        highest = np.maximum.reduceat(root, starts)
        highest[highest < LEAST_ROOT] = 0
        self.ratio_max[first:last], self.root_max[first:last] = top, highest
        nudge = np.float32(NUDGE)
        scale = _per_block(np.float32(RATIO_TOP) * nudge, top)
        z = ratio * np.repeat(scale, sizes) + up
        codes = (z + np.float32(RATIO_ZERO + 0.5)).astype(np.int32)
        self.ratio[at] = np.clip(codes, 1, 255)
        x = root * np.repeat(_per_block(nudge, highest), sizes)
        codes = ((x.view(np.int32) + root_up) >> ROOT_SHIFT) - ROOT_LOW
        self.root[at] = np.clip(codes, 0, 255)


def _per_block(top: np.float32, highest: Floats) -> Floats:
    """``top / highest``, 0 where that is 0."""
    return np.divide(top, highest, out=np.zeros_like(highest), where=highest > 0)
