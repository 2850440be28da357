"""The best weights on the disk are those that a run tells of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.digits import ARTIFACTS, digits
from support.disks import FullDisk

from edge_train.commands.train import NOT_SAVED, exit_code
from edge_train.trainer import Trainer
from edge_train.training.run_folder import RunFolder
from edge_train.training.run_state import Best, read_run


def _judged(folder: Path, values: dict[int, float], disk: FullDisk, full: int) -> Trainer:
    """Its metric is what ``values`` says at each step; the disk is full during step ``full``."""
    steps = [0]

    def quality(prediction: Any, target: Any) -> float:
        return values.get(steps[0], 0.0)

    def note(record: Any) -> None:
        steps[0], disk.full = record.step, record.step == full

    training, test = digits()
    return Trainer.from_artifacts(
        ARTIFACTS,
        (training.x[:320], training.labels[:320]),
        evaluation=(test.x[:32], test.labels[:32]),
        metrics=[quality],
        **{"evaluate_every": 2, "steps": max(values), "folder": folder, "callbacks": [note]},
    )


def test_best_weights_that_the_disk_refused_are_not_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FullDisk(monkeypatch)
    result = _judged(tmp_path, {2: 0.5, 4: 0.9, 6: 0.7, 7: 0.0}, disk, 4).run()
    assert result.best == Best("quality", 0.7, 6)
    assert read_run(tmp_path / "best").step == 6
    assert result.failed_save == ""


def test_best_weights_are_kept_by_the_next_start_if_they_are_still_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FullDisk(monkeypatch)
    before, values = RunFolder.save, {2: 0.5, 4: 0.9}

    def save(*arguments: Any) -> int:
        disk.full = False  # there is room again, for the state
        return before(*arguments)

    monkeypatch.setattr(RunFolder, "save", save)
    result = _judged(tmp_path, values, disk, 4).run()
    assert (result.reason.value, result.best) == ("completed", Best("quality", 0.5, 2))
    assert "the best weights, of step 4: " in result.failed_save
    assert exit_code(result) == NOT_SAVED
    again = _judged(tmp_path, values, disk, 0).run()
    assert (again.best, again.failed_save) == (Best("quality", 0.9, 4), "")
    assert read_run(tmp_path / "best").step == 4
