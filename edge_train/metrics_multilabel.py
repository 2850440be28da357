"""Metrics of several labels a row, each there or not: what BCEWithLogitsLoss trains."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

_START = "multilabel_"


class MultilabelAccuracy:
    """The share of labels that are right (1 - Hamming loss), or with ``whole`` that of rows with
    every label right (subset accuracy, exact match).

    Predictions are logits (n, labels, ...), above 0 where a label is said to be there; targets have
    that shape and values from 0 to 1, above 0.5 where it is. Every place of further axes is a row.
    A NaN is wrong whether the label is there or not.
    """

    larger_is_better = True

    def __init__(self, whole: bool = False) -> None:
        self.name = f"{_START}{'exact' if whole else 'accuracy'}"
        self._whole = whole
        self._hits = self._count = 0

    def add(self, prediction: NDArray[Any], target: NDArray[Any]) -> None:
        """One batch."""
        said, there = _labels(self.name, prediction, target)
        right = (said == there) & _rows(~np.isnan(prediction))
        right = right.all(axis=1) if self._whole else right
        self._hits += int(right.sum())
        self._count += right.size

    def value(self) -> float:
        """NaN before the first row."""
        return self._hits / self._count if self._count else math.nan


class MultilabelF1:
    """F1 = 2 hits / (said + there): "micro" of the counts of all labels together, "macro" the mean
    over the labels, those left out that are neither there nor said to be.

    Predictions and targets as of MultilabelAccuracy; a NaN does not say that the label is there.
    """

    larger_is_better = True

    def __init__(self, average: str) -> None:
        self.name = f"{_START}f1_{average}"
        self._micro = average == "micro"
        self._table = np.zeros((2, 0), np.int64)  # hits, said + there

    def add(self, prediction: NDArray[Any], target: NDArray[Any]) -> None:
        """One batch."""
        said, there = _labels(self.name, prediction, target)
        counts = np.stack([(said & there).sum(axis=0), said.sum(axis=0) + there.sum(axis=0)])
        if self._table.shape[1] not in (0, counts.shape[1]):
            raise ValueError(
                f"{self.name}: a batch has {counts.shape[1]} labels, those before had "
                f"{self._table.shape[1]}"
            )
        self._table = counts if not self._table.size else self._table + counts

    def value(self) -> float:
        """NaN before a label is there or said to be."""
        table = self._table.sum(axis=1, keepdims=True) if self._micro else self._table
        hits, total = table[:, table[1] > 0]
        return float(np.mean(2 * hits / total)) if total.size else math.nan


NAMED: Mapping[str, Callable[[], MultilabelAccuracy | MultilabelF1]] = {
    f"{_START}accuracy": MultilabelAccuracy,
    f"{_START}exact": lambda: MultilabelAccuracy(whole=True),
    f"{_START}f1_micro": lambda: MultilabelF1("micro"),
    f"{_START}f1_macro": lambda: MultilabelF1("macro"),
}


def refuse_several(target: NDArray[Any]) -> None:
    """ValueError for targets of zeros and ones with rows of several ones: no row has one class."""
    ones = target == 1
    if (ones | (target == 0)).all() and (ones.sum(axis=1) > 1).any():
        raise ValueError(
            f"accuracy and f1 are about one class a row, the target {target.shape} has rows with "
            f"several labels; for these there are {list(NAMED)}"
        )


def _labels(
    name: str, prediction: NDArray[Any], target: NDArray[Any]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which labels are said to be there and which are, each (rows, labels)."""
    if prediction.size != target.size or (prediction.ndim > 1 and prediction.shape != target.shape):
        raise ValueError(
            f"{name} needs a logit and a target of 0 or 1 for each label, got a prediction of "
            f"shape {prediction.shape} and a target of {target.dtype} {target.shape}"
        )
    if target.size and not (target.min() >= 0 and target.max() <= 1):
        raise ValueError(
            f"{name} needs a target from 0 to 1, got {target.min():.4g} to {target.max():.4g}"
        )
    return _rows(prediction > 0), _rows(target.reshape(prediction.shape) > 0.5)


def _rows(values: NDArray[np.bool_]) -> NDArray[np.bool_]:
    if values.ndim < 2:
        return values.reshape(-1, 1)
    return np.moveaxis(values, 1, -1).reshape(-1, values.shape[1])
