"""Metrics of several labels a row: against definitions written out label by label."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from support.zoo import ZOO

from edge_train import metrics
from edge_train.cli import main
from edge_train.commands.train import _METRICS
from edge_train.metrics_multilabel import NAMED
from edge_train.runfile.options import Judging

RNG = np.random.default_rng(9)
TARGET = (RNG.random((40, 5)) < 0.4).astype(np.float32)
LOGITS = (RNG.standard_normal((40, 5)) + 2 * TARGET - 1).astype(np.float32)
CASE = ZOO["mlp_BCEWithLogitsLoss"]


def measured(name: str, prediction: np.ndarray, target: np.ndarray) -> float:
    """The metric over batches of uneven sizes."""
    (metric,) = metrics.make([name])
    assert metric.name == name
    assert metric.larger_is_better
    assert math.isnan(metric.value())
    for rows in (slice(0, 7), slice(7, 8), slice(8, None)):
        if len(target[rows]):
            metric.add(prediction[rows], target[rows])
    return metric.value()


def f1_of(said: np.ndarray, there: np.ndarray) -> float:
    """From precision and recall, as the books have it."""
    hits = sum(bool(a and b) for a, b in zip(said, there, strict=True))
    if not hits:
        return 0.0
    precision, recall = hits / said.sum(), hits / there.sum()
    return float(2 * precision * recall / (precision + recall))


def expected(logits: np.ndarray, target: np.ndarray) -> dict[str, float]:
    said, there = logits > 0, target == 1
    labels = [k for k in range(said.shape[1]) if said[:, k].any() or there[:, k].any()]
    return {
        "multilabel_accuracy": float(np.mean(said == there)),
        "multilabel_exact": float(
            np.mean([np.array_equal(a, b) for a, b in zip(said, there, strict=True)])
        ),
        "multilabel_f1_micro": f1_of(said.reshape(-1), there.reshape(-1)),
        "multilabel_f1_macro": float(np.mean([f1_of(said[:, k], there[:, k]) for k in labels])),
    }


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("kind", [np.float32, np.int64, np.bool_, np.uint8])
def test_definitions(name: str, kind: type) -> None:
    value = measured(name, LOGITS, TARGET.astype(kind))
    assert value == pytest.approx(expected(LOGITS, TARGET)[name])
    assert 0.1 < value < 0.9
    row = int(((LOGITS > 0) == TARGET).all(axis=1).argmax())  # one that is right
    wrong = TARGET.copy()
    wrong[row] = LOGITS[row] <= 0
    assert value != pytest.approx(expected(LOGITS, wrong)[name])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        # said (1 0 1), (0 1 0), (0 0 0); there (1 0 0), (0 1 0), (0 0 0): hits 2, said 3, there 2
        ("multilabel_accuracy", 8 / 9),
        ("multilabel_exact", 2 / 3),
        ("multilabel_f1_micro", 4 / 5),
        ("multilabel_f1_macro", (1 + 1 + 0) / 3),
    ],
)
def test_by_hand(name: str, value: float) -> None:
    logits = np.array([[2, -1, 1], [-1, 3, -1], [-2, -1, 0]], np.float32)  # 0 is no label
    target = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 0]])
    assert measured(name, logits, target) == pytest.approx(value)


@pytest.mark.parametrize("name", NAMED)
def test_places_of_further_axes_are_rows(name: str) -> None:
    images = np.moveaxis(LOGITS.reshape(10, 2, 2, 5), 3, 1)  # (B, labels, H, W)
    target = np.moveaxis(TARGET.reshape(10, 2, 2, 5), 3, 1)
    assert measured(name, images, target) == pytest.approx(expected(LOGITS, TARGET)[name])


@pytest.mark.parametrize("name", NAMED)
def test_a_single_label(name: str) -> None:
    value = expected(LOGITS[:, :1], TARGET[:, :1])[name]
    assert measured(name, LOGITS[:, 0], TARGET[:, 0]) == pytest.approx(value)
    assert measured(name, LOGITS[:, :1], TARGET[:, :1]) == pytest.approx(value)
    assert measured(name, LOGITS[:, 0], TARGET[:, :1]) == pytest.approx(value)


def test_a_label_that_is_nowhere_is_left_out_of_the_mean() -> None:
    logits = np.concatenate([LOGITS, np.full((40, 1), -3.0, np.float32)], axis=1)
    target = np.concatenate([TARGET, np.zeros((40, 1), np.float32)], axis=1)
    value = expected(LOGITS, TARGET)["multilabel_f1_macro"]
    assert measured("multilabel_f1_macro", logits, target) == pytest.approx(value)
    nothing = measured("multilabel_f1_micro", -np.ones((9, 3)), np.zeros((9, 3)))
    assert math.isnan(nothing)
    assert measured("multilabel_f1_micro", np.ones((9, 3)), np.zeros((9, 3))) == 0.0


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize(
    ("logits", "target", "said"),
    [
        (LOGITS, TARGET[:, :4], r"shape \(7, 5\) and a target of float32 \(7, 4\)"),
        (LOGITS, np.arange(40), r"a target of int64 \(7,\)"),
        (LOGITS, TARGET.T.reshape(5, 40), "for each label"),
        (LOGITS, TARGET - 1, "a target from 0 to 1, got -1 to"),
        (LOGITS, TARGET * 2, r"a target from 0 to 1, got 0 to 2"),
        (LOGITS, np.where(TARGET > 0, np.nan, TARGET), "from 0 to 1, got nan"),
    ],
)
def test_targets_that_are_none(
    name: str, logits: np.ndarray, target: np.ndarray, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        measured(name, logits, target)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        # said (1 -), (- 1), (0 0); there (1 1), (0 1), (0 0): hits 2, said 2, there 3
        ("multilabel_accuracy", 4 / 6),
        ("multilabel_exact", 1 / 3),
        ("multilabel_f1_micro", 4 / 5),
        ("multilabel_f1_macro", (1 + 2 / 3) / 2),
    ],
)
def test_a_nan_is_right_about_no_label(name: str, value: float) -> None:
    logits = np.array([[1, np.nan], [np.nan, 2], [-1, -1]], np.float32)
    target = np.array([[1, 1], [0, 1], [0, 0]])
    assert measured(name, logits, target) == pytest.approx(value)
    assert measured(name, np.full((3, 2), np.nan), target) == 0.0
    if "accuracy" in name:
        assert measured(name, np.full(3, np.nan), np.array([0, 1, 0])) == 0.0


def test_batches_with_other_labels() -> None:
    (metric,) = metrics.make(["multilabel_f1_macro"])
    metric.add(LOGITS, TARGET)
    with pytest.raises(ValueError, match="a batch has 4 labels, those before had 5"):
        metric.add(LOGITS[:, :4], TARGET[:, :4])


@pytest.mark.parametrize("name", ["accuracy", "top2", "f1"])
def test_one_class_a_row_is_no_metric_of_several(name: str) -> None:
    with pytest.raises(ValueError, match=r"rows with several labels; .*multilabel_accuracy"):
        measured(name, LOGITS, TARGET)
    with pytest.raises(ValueError, match="rows with several labels"):
        measured(name, LOGITS, TARGET.astype(np.int64))
    one_hot = np.eye(5, dtype=np.float32)[RNG.integers(0, 5, 40)]
    soft = 0.9 * one_hot + 0.02
    assert measured(name, LOGITS, one_hot) == measured(name, LOGITS, soft)


def test_the_names_are_told_where_they_are_asked_for() -> None:
    words = Judging.__dataclass_fields__["metrics"].metadata
    for name in NAMED:
        assert name in _METRICS
        assert name in str(words)
    with pytest.raises(ValueError, match="did you mean 'multilabel_f1_micro'"):
        metrics.make(["multilabel_f1_mikro"])


def test_the_command_judges_a_model_of_several_labels(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Trained with BCEWithLogitsLoss to say which of its inputs are above 0, then judged."""
    x = RNG.standard_normal((256, 4)).astype(np.float32)
    target = (x[:, :3] > 0).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=x, target=target)
    names = ",".join(NAMED)
    words = ["--artifacts", str(CASE.folder), "--folder", str(tmp_path / "run")]
    words += ["--data", str(tmp_path / "data.npz"), "--evaluation", str(tmp_path / "data.npz")]
    options = ["--epochs", "20", "--rate", "0.05", "--show", "none", "--metrics", names]
    assert main(["train", *words, *options]) == 0
    capsys.readouterr()
    assert main(["eval", *words[:4], *words[6:], "--json", "--metrics", names]) == 0
    told = json.loads(capsys.readouterr().out)
    for name in NAMED:
        assert told[name] > 0.8, (name, told)
    assert told["multilabel_exact"] < told["multilabel_accuracy"]
    assert main(["eval", *words[:4], *words[6:], "--metrics", "accuracy"]) == 2
    assert "multilabel_accuracy" in capsys.readouterr().err
