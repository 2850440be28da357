"""Where the buffers of an Arena lie. This module: in the process's own memory; the other devices
of edge_train.device derive from ``Memory``.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_train.interrupts import Unbroken
from edge_train.kernels.contract import Steps

Floats = NDArray[np.float32]

_ALIGNMENT = 64  # bytes: a cache line, and the widest vector register


def zeros(size: int) -> Floats:
    """Aligned float32 zeros: untouched pages of the system, which cost nothing before a write."""
    spare = _ALIGNMENT // np.dtype(np.float32).itemsize
    raw: Floats = np.zeros(size + spare, np.float32)
    start = -raw.ctypes.data % _ALIGNMENT // raw.itemsize
    return raw[start : start + size]


@dataclass(frozen=True)
class Entry:
    """A parameter that is to have a place: ``offset`` is its first element in the flat buffer of
    all parameters, -1 for one that is not in it.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    trainable: bool
    offset: int = -1

    @property
    def nbytes(self) -> int:
        """The number of bytes."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


class Memory:
    """The process's own memory, and what a device may do otherwise.

    ``has_values``: the memory brings the parameters' values with it.
    """

    name = "cpu"
    has_values = False

    def prepare(self, entries: Sequence[Entry]) -> None:
        """Told before anything is asked for: the trainable parameters in their order, the rest."""

    def weights(self, size: int) -> Floats:
        """The trainable parameters' buffer."""
        return zeros(size)

    def gradients(self, size: int) -> Floats:
        """The gradients' buffer, zeros."""
        return zeros(size)

    def moment(self, index: int, size: int) -> Floats:
        """The buffer of optimizer moment ``index``, zeros."""
        return zeros(size)

    def frozen(self, name: str) -> np.ndarray | None:
        """A home for a parameter that is not trained; None: it may stay where it is."""
        return None

    def writing(self) -> AbstractContextManager[object]:
        """Surrounds every change of parameters: no signal's handler ends it halfway, and no other
        process reads half of it.
        """
        return Unbroken()

    def publish(self) -> None:
        """Every parameter has its values now."""

    def check(self) -> None:
        """Raises if the memory cannot be read any more (a mapped file that was overwritten)."""

    def to_host(self) -> None:
        """Makes the arrays hold what the device wrote into its copies."""

    def steps(self, steps: Steps) -> Steps:
        """The optimizer's kernels here: ``steps`` itself, or others for whole buffers."""
        return steps
