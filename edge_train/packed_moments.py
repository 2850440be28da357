"""Optimizer moments of 8 bits in a CheckpointState, as float32 arrays to everyone who reads them.

A group's ``moments`` hold a PackedMoment where float32 moments would have an array: a save, a copy
or a reader expands one at a time, exactly (kernels/packed.py), so that checkpoints are those of
float32 moments: the reference reads them, and any Optimizer here goes on from them.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from edge_train.arena import Arena
from edge_train.arena_memory import Floats
from edge_train.checkpoint.parameter import Array
from edge_train.checkpoint.state import OptimizerGroup
from edge_train.kernels.packed import Packed, block_bounds
from edge_train.kernels.pool import PIECE


class _Pair:
    """Both moments of one parameter; what is assigned waits until both are there."""

    def __init__(self, packed: Packed, at: slice) -> None:
        self._packed = packed
        self.at = at
        self._assigned: dict[int, Floats] = {}

    def read(self, index: int) -> Floats:
        if index in self._assigned:
            return self._assigned[index]
        return self._packed.decode(self.at)[index]

    def assign(self, index: int, values: Floats) -> None:
        self._assigned[index] = np.array(values)
        if len(self._assigned) == 2:
            self.settle()

    def settle(self) -> None:
        """Packs what was assigned."""
        if self._assigned:
            m, v = self.read(0), self.read(1)
            self._packed.encode(self.at, m, v)
            self._assigned.clear()


class PackedMoment:
    """``momentum0`` or ``momentum1`` of a parameter; np.asarray makes a float32 array of it."""

    dtype = np.dtype(np.float32)

    def __init__(
        self, owner: PackedMoments, pair: _Pair, index: int, shape: tuple[int, ...]
    ) -> None:
        self.owner = owner
        self._pair = pair
        self._index = index
        self.shape = shape

    @property
    def nbytes(self) -> int:
        """Bytes of the float32 array."""
        size: int = self._pair.at.stop - self._pair.at.start
        return size * self.dtype.itemsize

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        values = self._pair.read(self._index).reshape(self.shape)
        return np.array(values, dtype)

    def __setitem__(self, key: Any, value: Any) -> None:
        """Assigns as to an array; rounded once the other moment is assigned too, or at a step."""
        values = np.array(self)
        values[key] = value
        self._pair.assign(self._index, values.reshape(-1))


def _as_array(moment: PackedMoment) -> Array:
    return cast(Array, moment)  # as far as readers of a group are concerned


class PackedMoments:
    """The moments of an Arena's parameters, of 8 bits each, taken over from ``group``.

    A group without moments starts from zeros.
    """

    def __init__(self, group: OptimizerGroup, arena: Arena) -> None:
        self.arena: Arena | None = arena
        slots = [arena.slot(name) for name in arena.names]
        self.packed = Packed(block_bounds([at.stop - at.start for at in slots]))
        self.parts = self.packed.parts(PIECE)
        self._pairs = [_Pair(self.packed, at) for at in slots]
        for name, pair in zip(arena.names, self._pairs, strict=True):
            own = group.moments.setdefault(name, {})
            old = [own.get(f"momentum{index}") for index in range(2)]
            if old[0] is not None and old[1] is not None:
                m, v = (np.asarray(moment, np.float32).reshape(-1) for moment in old)
                self.packed.encode(pair.at, m, v)
            shape = arena.shape(name)
            for index in range(2):
                # the array of this parameter is let go before the next is packed
                own[f"momentum{index}"] = _as_array(PackedMoment(self, pair, index, shape))

    def __getstate__(self) -> dict[str, Any]:
        # a copied state belongs to no arena: its moments are packed anew for the next one
        return {**self.__dict__, "arena": None}

    def settle(self) -> None:
        """Packs what was assigned to single moments."""
        for pair in self._pairs:
            pair.settle()


def form_of(group: OptimizerGroup) -> PackedMoments | None:
    """The packed moments that a group holds, None for arrays."""
    own = next(iter(group.moments.values()), {})
    moment: Any = own.get("momentum0")
    return moment.owner if isinstance(moment, PackedMoment) else None
