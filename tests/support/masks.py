"""The masks of native/dropout.c in NumPy: its seeds and its hash, from the same sources."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

BLOCK = 4096
_GAMMA = np.uint64(0x9E3779B97F4A7C15)


def split(seed: int, index: int | NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Numbers ``index`` of SplitMix64 from ``seed`` (Steele, Lea, Flood 2014)."""
    with np.errstate(over="ignore"):
        z = np.uint64(seed) + (np.atleast_1d(np.asarray(index, np.uint64)) + np.uint64(1)) * _GAMMA
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def drawn(seed: int, index: int) -> int:
    """The ``index``-th seed that is drawn after ``set_seed(seed)``."""
    return int(split(int(split(seed, 0)[0]), index)[0])


def hashes(seed: int, count: int) -> NDArray[np.uint32]:
    """32 bits for each of ``count`` elements: triple32 by C. Wellons, with a block's key."""
    key = split(seed, np.arange(-(-count // BLOCK), dtype=np.uint64))[:, None]
    first = key.astype(np.uint32)
    second = (key >> np.uint64(32)).astype(np.uint32)
    x = np.arange(BLOCK, dtype=np.uint32)[None] + first
    x = (x ^ (x >> np.uint32(17))) * np.uint32(0xED5AD4BB)
    x = (x ^ (x >> np.uint32(11)) ^ second) * np.uint32(0xAC4C1B51)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0x31848BAB)
    return (x ^ (x >> np.uint32(14))).ravel()[:count]


def kept(seed: int, count: int, ratio: float) -> NDArray[np.bool_]:
    """Whether each element stays: its bits, as a number with a sign, against the ratio."""
    bound = int(np.float32(ratio).astype(np.float64) * 2**32) - 2**31
    return hashes(seed, count).view(np.int32).astype(np.int64) >= bound
