"""Metrics: against formulas written out by hand, over batches of any split."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from edge_train import metrics

RNG = np.random.default_rng(5)
SCORES = RNG.standard_normal((40, 6)).astype(np.float32)
LABELS = RNG.integers(0, 6, 40)


def measured(name: str | Callable[..., float], prediction: np.ndarray, target: np.ndarray) -> float:
    """The metric over batches of uneven sizes."""
    (metric,) = metrics.make([name])
    for rows in (slice(0, 7), slice(7, 8), slice(8, None)):
        if len(target[rows]):
            metric.add(prediction[rows], target[rows])
    return metric.value()


@pytest.mark.parametrize("k", [1, 2, 5, 6])
def test_top_k(k: int) -> None:
    best = np.argsort(-SCORES, axis=1)[:, :k]
    expected = np.mean([label in row for label, row in zip(LABELS, best, strict=True)])
    assert measured("accuracy" if k == 1 else f"top{k}", SCORES, LABELS) == pytest.approx(expected)


def test_constant_scores_are_no_knowledge() -> None:
    assert measured("accuracy", np.zeros((10, 4), np.float32), np.zeros(10, np.int64)) == 0.0


def test_f1_is_the_mean_over_the_classes() -> None:
    guesses = SCORES.argmax(axis=1)
    scores = []
    for label in range(6):
        hits = np.sum((guesses == label) & (label == LABELS))
        precision = hits / max(1, np.sum(guesses == label))
        recall = hits / max(1, np.sum(label == LABELS))
        scores.append(2 * precision * recall / (precision + recall) if hits else 0.0)
    assert measured("f1", SCORES, LABELS) == pytest.approx(np.mean(scores))


def test_f1_of_two_classes_is_that_of_the_positive_one() -> None:
    logits = np.array([3.0, -1.0, 2.0, -2.0, 1.0])
    target = np.array([1.0, 1.0, 0.0, 0.0, 1.0])
    for shape in ((5,), (5, 1)):  # 2 hits, 3 predicted, 3 there
        assert measured("f1", logits.reshape(shape), target.reshape(shape)) == pytest.approx(2 / 3)
    both = np.stack([-logits, logits], axis=1)
    assert measured("f1", both, target.astype(np.int64)) == pytest.approx(2 / 3)


def test_f1_without_a_hit_is_0_and_without_rows_nan() -> None:
    assert measured("f1", np.array([-1.0, 1.0]), np.array([1.0, 0.0])) == 0.0
    assert math.isnan(metrics.make(["f1"])[0].value())


def test_errors() -> None:
    prediction, target = RNG.standard_normal((12, 3)), RNG.standard_normal((12, 3))
    assert measured("mae", prediction, target) == pytest.approx(np.abs(prediction - target).mean())
    expected = math.sqrt(np.square(prediction - target).mean())
    assert measured("rmse", prediction, target) == pytest.approx(expected)
    assert measured("rmse", prediction, target * 1.001) != pytest.approx(expected)
    assert measured("mae", prediction[:, :1], target[:, 0]) > 0  # (n, 1) against (n,)


def test_a_function_is_averaged_over_the_rows() -> None:
    def spread(prediction: np.ndarray, target: np.ndarray) -> float:
        return float(target.mean())

    target = np.arange(20.0)
    assert measured(spread, target, target) == pytest.approx(9.5)
    (made,) = metrics.make([spread])
    assert (made.name, made.larger_is_better) == ("spread", True)


def test_sequences_and_ignored_labels() -> None:
    scores = np.moveaxis(SCORES.reshape(8, 5, 6), 2, 1)  # (B, classes, T)
    labels = LABELS.reshape(8, 5).copy()
    expected = np.mean(SCORES.argmax(axis=1) == LABELS)
    assert measured("accuracy", scores, labels) == pytest.approx(expected)
    labels[:, 3:] = -100
    expected = np.mean((SCORES.argmax(axis=1) == LABELS).reshape(8, 5)[:, :3])
    assert measured("accuracy", scores, labels) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("name", "said"),
    [("acuracy", "did you mean 'accuracy'"), ("top0", "no metric 'top0'"), ("x", "known are")],
)
def test_unknown_names(name: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        metrics.make([name])


def test_predictions_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="need class scores and whole numbers"):
        measured("accuracy", SCORES, LABELS.astype(np.float32))
    with pytest.raises(ValueError, match="mae needs a target of the prediction's shape"):
        measured("mae", SCORES, SCORES[:, :2])


@pytest.mark.parametrize("name", ["accuracy", "f1"])
def test_numbers_are_no_classes_of_a_single_output(name: str) -> None:
    with pytest.raises(ValueError, match="a target from 0 to 1, got 3 to 9; mae and rmse"):
        measured(name, np.linspace(0, 9, 10).reshape(10, 1), np.arange(9.0, -1, -1)[:, None])


@pytest.mark.parametrize("name", ["accuracy", "top2", "top3", "f1"])
def test_scores_that_are_nan_are_no_hits(name: str) -> None:
    labels = np.array([0, 1, 2, 0])
    assert measured(name, np.full((4, 3), np.nan, np.float32), labels) == 0.0
    logits = np.full((4, 1), np.nan, np.float32)
    assert measured(name, logits, np.array([[1.0], [0], [1], [0]])) == 0.0
    right = np.eye(3, dtype=np.float32)[labels]
    assert measured(name, right, labels) == 1.0
    right[3, 0] = np.nan
    expected = (1 + 1 + 2 / 3) / 3 if name == "f1" else 3 / 4
    assert measured(name, right, labels) == pytest.approx(expected)


@pytest.mark.parametrize(("name", "value"), [("accuracy", 0.5), ("top2", 1.0), ("f1", 2 / 3)])
def test_a_nan_of_another_class_is_ahead(name: str, value: float) -> None:
    scores = np.array([[1.0, np.nan], [0.0, 1.0], [1.0, 0.0], [np.nan, 1.0]], np.float32)
    assert measured(name, scores, np.array([0, 1, 0, 1])) == pytest.approx(value)


@pytest.mark.parametrize("name", ["mae", "rmse"])
def test_the_error_of_a_nan_is_nan(name: str) -> None:
    assert math.isnan(measured(name, np.array([1.0, np.nan, 2.0]), np.ones(3)))
