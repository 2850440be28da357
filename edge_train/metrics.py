"""Metrics of an evaluation, summed batch by batch: memory for one batch is all they take.

A metric is one of the names here or a function of the user's. ``make`` gives the objects that
``evaluation.evaluate`` drives.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edge_train import metrics_multilabel

Array: TypeAlias = NDArray[Any]
#: (prediction, target) of one batch -> a mean over its rows
UserMetric: TypeAlias = Callable[[Array, Array], float]


class Metric(Protocol):
    """Sums over batches. ``larger_is_better`` says which way is progress."""

    name: str
    larger_is_better: bool

    def add(self, prediction: Array, target: Array) -> None: ...
    def value(self) -> float: ...


class Accuracy:
    """The share of rows whose class is among the ``k`` largest predictions.

    Predictions are (n, classes, ...) scores, or (n,) or (n, 1) logits of the positive class;
    targets whole numbers, (n, ...), or scores of the prediction's shape. A NaN for the row's class
    is a miss, one for another class counts as larger.
    """

    larger_is_better = True

    def __init__(self, k: int = 1) -> None:
        self.name = "accuracy" if k == 1 else f"top{k}"
        self._k = k
        self._hits = self._count = 0

    def add(self, prediction: Array, target: Array) -> None:
        """One batch."""
        scores, labels = _rows_of_classes(prediction, target)
        own = np.take_along_axis(scores, labels[:, None], axis=1)
        # what is not below counts against the row: ties (constant scores are no knowledge), NaN
        rank = scores.shape[1] - 1 - (scores < own).sum(axis=1)
        self._hits += int(((rank < self._k) & ~np.isnan(own[:, 0])).sum())
        self._count += len(labels)

    def value(self) -> float:
        """NaN before the first row."""
        return self._hits / self._count if self._count else math.nan


class F1:
    """The harmonic mean of precision and recall, averaged over the classes that occur ("macro").

    Of the positive class alone where there are two. A row with a NaN predicts no class.
    """

    name = "f1"
    larger_is_better = True

    def __init__(self) -> None:
        self._table = np.zeros((0, 3), np.int64)  # hits, predicted, there

    def add(self, prediction: Array, target: Array) -> None:
        """One batch."""
        scores, labels = _rows_of_classes(prediction, target)
        classes = scores.shape[1]
        if classes > len(self._table):
            self._table = np.pad(self._table, ((0, classes - len(self._table)), (0, 0)))
        known = ~np.isnan(scores).any(axis=1)  # argmax would take the NaN
        guesses = scores.argmax(axis=1)[known]
        hits = guesses[guesses == labels[known]]
        for column, values in enumerate((hits, guesses, labels)):
            self._table[:classes, column] += np.bincount(values, minlength=classes)[:classes]

    def value(self) -> float:
        """NaN before the first row."""
        hits, predicted, there = self._table[1:].T if len(self._table) == 2 else self._table.T
        total = predicted + there
        if not total.any():
            return math.nan if len(self._table) != 2 or not self._table.any() else 0.0
        return float(np.mean(2 * hits[total > 0] / total[total > 0]))


class MeanError:
    """The mean of ``|p - t|`` (MAE), or the root of that of ``(p - t)^2`` (RMSE)."""

    larger_is_better = False

    def __init__(self, name: str) -> None:
        self.name = name
        self._total, self._count = 0.0, 0

    def add(self, prediction: Array, target: Array) -> None:
        """One batch."""
        difference = _difference(self.name, prediction, target)
        terms = np.abs(difference) if self.name == "mae" else np.square(difference)
        self._total += float(terms.sum())
        self._count += difference.size

    def value(self) -> float:
        """NaN before the first row."""
        if not self._count:
            return math.nan
        mean = self._total / self._count
        return mean if self.name == "mae" else math.sqrt(mean)


class Mean:
    """The mean over all rows of what a user's function gives for a batch."""

    def __init__(self, name: str, function: UserMetric, larger_is_better: bool) -> None:
        self.name, self.larger_is_better = name, larger_is_better
        self._function = function
        self._total, self._count = 0.0, 0

    def add(self, prediction: Array, target: Array) -> None:
        """One batch."""
        rows = len(target)
        self._total += float(self._function(prediction, target)) * rows
        self._count += rows

    def value(self) -> float:
        """NaN before the first row."""
        return self._total / self._count if self._count else math.nan


_NAMED: Mapping[str, Callable[[], Metric]] = {
    "accuracy": Accuracy,
    "f1": F1,
    "mae": lambda: MeanError("mae"),
    "rmse": lambda: MeanError("rmse"),
    **metrics_multilabel.NAMED,
}


def make(metrics: Sequence[str | UserMetric]) -> list[Metric]:
    """Fresh metrics. "accuracy", "topK" (top5), "f1", "mae", "rmse", "multilabel_accuracy",
    "multilabel_exact", "multilabel_f1_micro", "multilabel_f1_macro", or functions.

    A function (prediction, target) -> float gives a batch's mean; it is named by ``__name__``, and
    larger is better unless its attribute ``larger_is_better`` is False. ValueError, TypeError
    for anything else.
    """
    return [_made(metric) for metric in metrics]


def _made(metric: str | UserMetric) -> Metric:
    if callable(metric):
        name = getattr(metric, "__name__", type(metric).__name__)
        return Mean(name, metric, getattr(metric, "larger_is_better", True))
    if not isinstance(metric, str):
        raise TypeError(f"metrics: expected a name or a function, got {type(metric).__name__}")
    if metric in _NAMED:
        return _NAMED[metric]()
    if metric.startswith("top") and metric[3:].isdigit() and int(metric[3:]) > 0:
        return Accuracy(int(metric[3:]))
    known = [*_NAMED, "top5"]
    near = difflib.get_close_matches(metric, known, n=1)
    hint = f"did you mean '{near[0]}'?" if near else f"known are {known} and functions"
    raise ValueError(f"metrics: no metric '{metric}'; {hint}")


def _rows_of_classes(prediction: Array, target: Array) -> tuple[Array, Array]:
    """Scores (rows, classes) and labels (rows,); rows with an ignored label are left out."""
    labels = target
    if prediction.ndim < 2 or prediction.shape[1] == 1:  # the positive class's logit
        positive = prediction.reshape(-1)
        negative = np.where(np.isnan(positive), positive, np.zeros_like(positive))
        scores = np.stack([negative, positive], axis=1)
        values = np.asarray(target).reshape(-1)
        if values.size and not 0 <= values.min() <= values.max() <= 1:
            raise ValueError(
                "accuracy and f1 of a single output need a target from 0 to 1, got "
                f"{values.min():.4g} to {values.max():.4g}; mae and rmse judge numbers"
            )
        labels = (values > 0.5).astype(np.int64)
    else:
        classes = prediction.shape[1]
        if target.shape == prediction.shape:
            metrics_multilabel.refuse_several(target)
            labels = target.argmax(axis=1) if target.dtype.kind == "f" else target
        scores = np.moveaxis(prediction, 1, -1).reshape(-1, classes)
        labels = labels.reshape(-1)
    if len(labels) != len(scores) or labels.dtype.kind not in "iu":
        raise ValueError(
            f"accuracy and f1 need class scores and whole numbers, got a prediction of shape "
            f"{prediction.shape} and a target of {target.dtype} {target.shape}"
        )
    there = (labels >= 0) & (labels < scores.shape[1])
    return scores[there], labels[there]


def _difference(name: str, prediction: Array, target: Array) -> Array:
    if prediction.size != target.size:
        raise ValueError(
            f"{name} needs a target of the prediction's shape, got {target.shape} for "
            f"{prediction.shape}"
        )
    difference: Array = prediction.astype(np.float64) - target.reshape(prediction.shape)
    return difference
