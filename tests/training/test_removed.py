"""A run folder that is removed, or cut short again, while a run is under way."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.digits import trainer

from edge_train.errors import CheckpointError
from edge_train.progress import Progress, StepRecord
from edge_train.trainer import StopReason
from edge_train.training.marker import Killed, Marker
from edge_train.training.run_folder import RunFolder


def _at(step: int, action: Any) -> Any:
    return lambda record: action() if record.step == step else None


def test_a_removed_folder_is_made_and_locked_again(tmp_path: Path) -> None:
    run = tmp_path / "run"
    refused: list[str] = []

    def remove(record: StepRecord) -> None:
        if record.step == 3:
            shutil.rmtree(run)
        if record.step == 5:
            with pytest.raises(CheckpointError) as error:
                trainer(steps=2, folder=run).run()
            refused.append(str(error.value))

    log = Progress(run / "metrics.jsonl", quiet=True)
    result = trainer(steps=7, folder=run, save_every=0, progress=log, callbacks=[remove]).run()
    assert (result.reason, result.failed_save) == (StopReason.COMPLETED, "")
    assert "another process trains" in refused[0]
    assert RunFolder(run).states()[0].name == "checkpoint-000000007"
    assert not (run / "running").exists()
    assert json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["steps"] == 7


def test_a_marker_that_is_removed_before_the_first_save_is_made_again(tmp_path: Path) -> None:
    trainer(steps=3, folder=tmp_path).run()
    remove = _at(4, (tmp_path / "running").unlink)
    result = trainer(steps=5, folder=tmp_path, callbacks=[remove]).run()
    assert (result.reason, result.failed_save) == (StopReason.COMPLETED, "")
    assert RunFolder(tmp_path).states()[0].name == "checkpoint-000000005"


@pytest.mark.parametrize("ended", [False, True])
def test_a_run_whose_folder_another_took_stops_and_leaves_it(tmp_path: Path, ended: bool) -> None:
    run = tmp_path / "run"
    theirs = Marker(run / "running")

    def take() -> None:
        os.rename(run, tmp_path / "removed")
        run.mkdir()
        theirs.set()
        if ended:
            theirs.clear()
            (run / "checkpoint-000000002").write_bytes(b"theirs")
        (run / "metrics.jsonl").write_text("{}\n")

    log = Progress(run / "metrics.jsonl", quiet=True)
    made = trainer(steps=99, folder=run, save_every=0, progress=log, callbacks=[_at(4, take)])
    result = made.run()
    names = {path.name for path in run.iterdir()}
    assert (result.reason, result.steps) == (StopReason.REQUESTED, 4)
    assert "the run folder" in result.failed_save
    assert "was removed under this run" in result.failed_save
    assert names == {"checkpoint-000000002" if ended else "running", "metrics.jsonl"}
    assert (run / "metrics.jsonl").read_text() == "{}\n"
    theirs.clear()


def test_a_log_that_is_edited_goes_on_in_a_run(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"

    def edit() -> None:
        log.sync()
        (tmp_path / "new").write_bytes(path.read_bytes())
        os.replace(tmp_path / "new", path)

    log = Progress(path, quiet=True)
    trainer(steps=5, folder=tmp_path, progress=log, callbacks=[_at(3, edit)]).run()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["step"] for line in lines if "loss" in line and "event" not in line][-1] == 5
    assert lines[-1]["event"] == "end"


def test_a_run_killed_again_before_its_first_step_knows_the_step(tmp_path: Path) -> None:
    first = Marker(tmp_path / "running")
    first.set()
    first.note(881, 5 << 20)
    _killed(first)
    second = Marker(tmp_path / "running")
    second.set()
    _killed(second)
    third = Marker(tmp_path / "running")
    third.set()
    assert third.killed == second.killed == Killed(881, 5 << 20, False)


def _killed(marker: Marker) -> None:
    """The lock goes, the file stays."""
    assert marker._file is not None
    os.close(marker._file)


def test_a_run_that_goes_on_notes_its_step_at_once(tmp_path: Path) -> None:
    trainer(steps=3, folder=tmp_path).run()
    seen: list[int] = []

    class Sees:
        def start(self, total: int | None, step: int = 0, **fields: Any) -> None:
            seen.append(json.loads((tmp_path / "running").read_text())["step"])

        def step(self, record: StepRecord) -> None: ...
        def event(self, name: str, **fields: Any) -> None: ...
        def close(self, result: Any = None) -> None: ...

    trainer(steps=5, folder=tmp_path, progress=Sees()).run()
    trainer(steps=5, folder=tmp_path, progress=Sees(), fresh=True).run()
    assert seen == [3, 0]


def test_the_marker_has_a_step_from_the_first_moment(tmp_path: Path) -> None:
    trainer(steps=3, folder=tmp_path).run()
    with RunFolder(tmp_path).opened():
        assert json.loads((tmp_path / "running").read_text())["step"] == 3
