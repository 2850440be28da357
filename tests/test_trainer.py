"""Trainer: a run ends where it says, and a resumed one where the uninterrupted one does."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.digits import ARTIFACTS, digits, trainer, weights

from edge_train.convert.nominal import to_nominal
from edge_train.errors import CheckpointError, DataError, NominalStateError, ShapeMismatch
from edge_train.progress import StepRecord
from edge_train.schedules import cosine, plateau
from edge_train.trainer import StopReason, Trainer

ONE_CYCLE = {"epochs": 3, "schedule": partial(cosine, 0.01, warmup=5)}


def stop_at(*steps: int) -> Callable[[StepRecord], bool]:
    return lambda record: record.step in steps


def test_learns_digits() -> None:
    _, test = digits()
    made = trainer(1437, epochs=2, evaluation=(test.x, test.labels))
    before = made.evaluate()["loss"]
    result = made.run()
    assert result.reason is StopReason.COMPLETED
    assert result.steps == 90
    assert result.metrics["loss"] < 0.4 < 2.0 < before


def test_resume_is_bit_exact(tmp_path: Path) -> None:
    whole = trainer(**ONE_CYCLE)
    whole.run()
    seen = []
    for _ in range(4):
        part = trainer(folder=tmp_path, callbacks=[stop_at(3, 10, 17)], **ONE_CYCLE)
        seen.append(part.run().steps)
    assert seen == [3, 10, 17, 30]
    assert np.array_equal(weights(whole), weights(part))
    assert not np.array_equal(weights(whole), weights(_other_seed()))


def test_a_relative_folder_is_that_of_the_making(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = trainer(epochs=1, steps=4, folder="run", callbacks=[stop_at(2)])
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert made.run().saved == tmp_path / "run" / "checkpoint-000000002"
    monkeypatch.chdir(tmp_path)
    assert trainer(epochs=1, steps=4, folder="run").run().resumed_from == 2
    assert list((tmp_path / "elsewhere").iterdir()) == []


def _other_seed() -> Trainer:
    other = trainer(seed=1, **ONE_CYCLE)
    other.run()
    return other


@pytest.mark.slow
def test_a_finished_run_stays_finished_and_can_be_extended(tmp_path: Path) -> None:
    assert trainer(epochs=1, folder=tmp_path).run().steps == 10
    again = trainer(epochs=1, folder=tmp_path).run()
    assert (again.steps, again.resumed_from, again.bytes_written) == (10, 10, 0)
    assert trainer(epochs=2, folder=tmp_path).run().steps == 20
    assert trainer(epochs=1, folder=tmp_path, fresh=True).run().resumed_from == 0


@pytest.mark.parametrize("keeps", [False, True])
def test_run_called_again_goes_on(tmp_path: Path, keeps: bool) -> None:
    whole = trainer(**ONE_CYCLE)
    whole.run()
    folder = tmp_path if keeps else None
    part = trainer(folder=folder, callbacks=[stop_at(4, 19)], **ONE_CYCLE)
    found = [part.run() for _ in range(4)]
    assert [(result.resumed_from, result.steps) for result in found] == [
        (0, 4),
        (4, 19),
        (19, 30),
        (30, 30),
    ]
    assert np.array_equal(weights(whole), weights(part))


def test_stop_ends_one_run_only() -> None:
    made = trainer(steps=5, callbacks=[lambda record: made.stop() if record.step == 2 else None])
    assert made.run().reason is StopReason.REQUESTED
    assert made.run().reason is StopReason.COMPLETED


def test_another_seed_is_refused(tmp_path: Path) -> None:
    trainer(steps=2, folder=tmp_path).run()
    with pytest.raises(CheckpointError, match="has the seed 0, now it is 7"):
        trainer(steps=2, folder=tmp_path, seed=7).run()


def test_another_schedule_is_refused(tmp_path: Path) -> None:
    trainer(steps=2, folder=tmp_path).run()
    with pytest.raises(CheckpointError, match="schedule 'constant', now it is 'plateau'"):
        trainer(steps=2, folder=tmp_path, schedule=plateau(0.1)).run()


@pytest.mark.parametrize("data", [lambda epoch: iter(()), iter(())])
def test_data_without_a_batch_is_an_error(tmp_path: Path, data: Any) -> None:
    with pytest.raises(DataError, match="the data gave no batch: expected at least one"):
        trainer(data=data, steps=9, folder=tmp_path).run()


def test_how_long_must_be_said() -> None:
    with pytest.raises(ValueError, match="pass epochs or steps"):
        trainer()


def judged_trainer(folder: Path, **options: Any) -> Trainer:
    training, test = digits()
    return Trainer.from_artifacts(
        ARTIFACTS,
        (training.x[:320], training.labels[:320]),
        evaluation=(test.x[:96], test.labels[:96]),
        schedule=0.01,
        folder=folder,
        **options,
    )


@pytest.mark.slow
def test_the_first_metric_chooses_the_best_weights(tmp_path: Path) -> None:
    for metrics, best, expected in (
        (["accuracy", "f1"], None, "accuracy"),
        (["accuracy", "f1"], "loss", "loss"),
        ([], None, "loss"),
    ):
        folder = tmp_path / f"{expected}{len(metrics)}"
        result = judged_trainer(folder, epochs=1, metrics=metrics, best=best).run()
        assert result.best is not None
        assert (result.best.metric, result.best.value) == (expected, result.metrics[expected])


def test_a_metric_watched_anew_is_not_measured_by_the_one_before(tmp_path: Path) -> None:
    """A loss of 2.2 is more than any accuracy will be."""
    first = judged_trainer(tmp_path, steps=2, metrics=["accuracy"], best="loss").run()
    assert first.best is not None
    assert first.best.value > 1
    result = judged_trainer(tmp_path, epochs=2, metrics=["accuracy"]).run()
    assert result.best is not None
    assert (result.best.metric, result.best.step > 2) == ("accuracy", True)


def test_data_of_another_shape_is_refused_before_the_folder_is_made(tmp_path: Path) -> None:
    training, test = digits()
    narrow = (training.x[:64, :, :4], training.labels[:64])
    with pytest.raises(ShapeMismatch, match="'pixels': expected shape"):
        trainer(data=narrow, steps=1, folder=tmp_path / "run")
    with pytest.raises(ShapeMismatch, match="'pixels': expected shape"):
        trainer(steps=1, folder=tmp_path / "run", evaluation=(test.x[:, :, 1:], test.labels))
    assert not (tmp_path / "run").exists()


def test_a_metric_that_does_not_fit_is_told_before_the_first_step(tmp_path: Path) -> None:
    made = judged_trainer(tmp_path, steps=3, metrics=["mae"])
    with pytest.raises(ValueError, match="mae needs a target of the prediction's shape"):
        made.run()
    assert made.optimizer.step_count == 0


@pytest.mark.parametrize("mistake", ["a metric that does not fit", "weights without data"])
def test_a_mistake_of_a_fresh_run_leaves_the_old_one(tmp_path: Path, mistake: str) -> None:
    judged_trainer(tmp_path, steps=2, metrics=["accuracy"]).run()
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    options: dict[str, Any] = {"metrics": ["mae"]}
    if mistake == "weights without data":
        options = {"checkpoint": tmp_path / "nominal"}
        to_nominal(ARTIFACTS / "checkpoint", options["checkpoint"])
        before[tmp_path / "nominal"] = (tmp_path / "nominal").read_bytes()
    made = judged_trainer(tmp_path, steps=2, fresh=True, **options)
    for _ in range(2):  # and is as fresh, run again
        with pytest.raises((ValueError, NominalStateError), match=r"mae needs|is nominal"):
            made.run()
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert judged_trainer(tmp_path, steps=3, fresh=True).run().resumed_from == 0


def test_the_rehearsal_of_metrics_leaves_no_trace(tmp_path: Path) -> None:
    """Evaluation data that draws from the random numbers that a run keeps."""
    _, test = digits()

    class Drawing:
        def __len__(self) -> int:
            return 64

        def __getitem__(self, row: int) -> tuple[np.ndarray, np.ndarray]:
            return test.x[row] * np.float32(random.random()), test.labels[row]

    def made(folder: Path, steps: int) -> list[float]:
        random.seed(7)
        options = {"metrics": ["accuracy"], "evaluate_every": 2, "steps": steps}
        training = (test.x[64:], test.labels[64:])
        made = Trainer.from_artifacts(
            ARTIFACTS, training, evaluation=Drawing(), folder=folder, schedule=0.01, **options
        )
        return [made.run().metrics["loss"], random.random()]

    whole = made(tmp_path / "whole", 4)
    made(tmp_path / "parts", 2)
    assert made(tmp_path / "parts", 4) == whole
