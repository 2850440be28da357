"""One pass over a split with the eval graph: the mean loss and the metrics."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from edge_train.errors import DataError
from edge_train.metrics import Metric, UserMetric, make
from edge_train.module import Module
from edge_train.training.feeds import Feeder
from edge_train.training.order import Position, Reader
from edge_train.training.predictions import Judged
from edge_train.training.process import random_state, restore_random_state

LOSS = "loss"


def watched(best: str | None, metrics: Sequence[str | UserMetric]) -> str:
    """The name of the metric that chooses the best weights: ``best``, else the first, else loss."""
    if best is not None:
        return best
    return next((metric.name for metric in make(metrics)), LOSS)


@dataclass(frozen=True)
class Evaluator:
    """Evaluates ``module`` on the batches of ``reader``; ``judged`` is what the metrics compare."""

    module: Module
    reader: Reader
    feeder: Feeder
    metrics: tuple[str | UserMetric, ...] = ()
    judged: Judged | None = None

    def __post_init__(self) -> None:
        made = make(self.metrics)
        if made and self.judged is None:
            raise DataError(
                f"metrics {[metric.name for metric in made]}: nothing in the eval graph says what "
                "the prediction is; name the tensor: prediction = '...'"
            )

    @property
    def left_over(self) -> int:
        """Rows that are not evaluated: the last ones, too few for a graph of fixed size."""
        rows = self.reader.rows
        return rows % self.reader.batch_size if rows and self.reader.drop_last else 0

    def larger_is_better(self, name: str) -> bool:
        """Which way the metric ``name`` progresses; ValueError for a name that is not evaluated."""
        if name == LOSS:
            return False
        for metric in make(self.metrics):
            if metric.name == name:
                return metric.larger_is_better
        known = [LOSS, *(metric.name for metric in make(self.metrics))]
        raise ValueError(f"best: '{name}' is not evaluated; the metrics are {known}")

    def run(self, before_batch: Callable[[], None] = lambda: None) -> dict[str, float]:
        """The mean loss over rows, and each metric by name; leaves the module in training mode.

        What ``before_batch`` or anything else raises leaves the random numbers as they were.
        """
        measured = make(self.metrics)
        total, count = 0.0, 0
        random = random_state()
        self.module.eval()
        try:
            for batch, _ in self.reader.one_epoch(Position()):
                before_batch()
                feeds = self.feeder.feed(batch)
                rows = self.feeder.rows(feeds)
                total += self._batch(feeds, measured) * rows
                count += rows
        except BaseException:  # the data may have drawn: it is judged again, from the start
            restore_random_state(random)
            raise
        finally:
            self.module.train()
        if not count:
            raise DataError("evaluation: the split has no rows")
        return {LOSS: total / count, **{metric.name: metric.value() for metric in measured}}

    def rehearse(self) -> None:
        """Judges one batch: metrics that do not fit the data are told now, not after an epoch.

        ValueError, DataError; leaves the module in training mode.
        """
        if not self.metrics:
            return
        random = random_state()  # the data may draw: a resumed run has one rehearsal more
        self.module.eval()
        try:
            for batch, _ in self.reader.one_epoch(Position()):
                self._batch(self.feeder.feed(batch), make(self.metrics))
                return
        finally:
            self.module.train()
            restore_random_state(random)

    def _batch(self, feeds: dict[str, np.ndarray], measured: Sequence[Metric]) -> float:
        made = self.module(**feeds)
        outputs = made if isinstance(made, tuple) else (made,)
        if measured and self.judged is not None:
            names = self.module.output_names()
            prediction = np.asarray(outputs[names.index(self.judged.prediction)])
            for metric in measured:
                metric.add(prediction, feeds[self.judged.target])
        loss = float(np.mean(np.asarray(outputs[0])))
        return loss if math.isfinite(loss) else math.nan
