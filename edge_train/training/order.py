"""The order of the rows, as a function of seed and epoch, and the place reached in it.

Nothing but (epoch, row) has to be stored to go on batch for batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sized
from dataclasses import dataclass, replace

import numpy as np

from edge_train.data.sources import Batch, Batches, Indices, Rows, Source, rows_in


@dataclass(frozen=True)
class Position:
    """Epoch and place within it, from 0: rows of a Rows source, batches of a Batches source."""

    epoch: int = 0
    place: int = 0


def epoch_order(rows: int, seed: int, epoch: int, shuffle: bool) -> Indices:
    """The row numbers of an epoch, int64 (rows,)."""
    if not shuffle:
        return np.arange(rows, dtype=np.int64)
    return np.random.default_rng([seed, epoch]).permutation(rows)


@dataclass(frozen=True)
class Reader:
    """Batches of ``source`` from any position on, for ever."""

    source: Source
    batch_size: int
    seed: int
    shuffle: bool = True
    drop_last: bool = False

    @property
    def rows(self) -> int | None:
        """Rows of an epoch, None where only the source's end tells."""
        return None if isinstance(self.source, Batches) else len(self.source)

    @property
    def batches(self) -> int | None:
        """Batches of an epoch, None where only the source's end tells."""
        if isinstance(self.source, Batches):
            made = self.source.batches
            return len(made) if isinstance(made, Sized) else None
        whole, rest = divmod(len(self.source), self.batch_size)
        return whole + (1 if rest and not self.drop_last else 0)

    def read(self, position: Position) -> Iterator[tuple[Batch, int, Position]]:
        """(batch, its epoch, position after it) from ``position`` on; epochs follow each other.

        Ends only where an epoch gives no batch at all.
        """
        while True:
            empty = position.place == 0
            epoch = position.epoch
            for batch, position in self.one_epoch(position):  # noqa: B020  (it moves on)
                empty = False
                yield batch, epoch, position
            if empty:
                return
            if position.epoch == epoch:
                position = Position(epoch + 1)

    def one_epoch(self, position: Position) -> Iterator[tuple[Batch, Position]]:
        """(batch, position after it) from ``position`` to the end of its epoch."""
        if isinstance(self.source, Batches):
            return self._given(self.source, position)
        return self._chosen(self.source, position)

    def _chosen(self, rows: Rows, position: Position) -> Iterator[tuple[Batch, Position]]:
        total = len(rows)
        end = total - total % self.batch_size if self.drop_last else total
        order = epoch_order(total, self.seed, position.epoch, self.shuffle)
        for start in range(position.place, end, self.batch_size):
            stop = min(start + self.batch_size, end)
            after = Position(position.epoch + 1) if stop == end else replace(position, place=stop)
            batch = rows.take(order[start:stop])
            if rows_in(batch):  # no row of it could be read, maybe
                yield batch, after

    def _given(self, batches: Batches, position: Position) -> Iterator[tuple[Batch, Position]]:
        for place, batch in enumerate(batches.epoch(position.epoch)):
            if place >= position.place and rows_in(batch):
                yield batch, replace(position, place=place + 1)
