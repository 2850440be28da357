"""A run folder under every fault: what is lost is the last interval, never the run."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.digits import ARTIFACTS, digits, fresh_module, trainer, weights
from support.disks import FullDisk

from edge_train.api import Module
from edge_train.errors import ArtifactError, CheckpointError, CheckpointVersion
from edge_train.trainer import Trainer
from edge_train.training import run_folder, run_state
from edge_train.training.marker import Marker
from edge_train.training.run_folder import RunFolder, weights_in

_BLOCK = 4096


class Told:
    """A progress that keeps the events."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def start(self, total: int | None, step: int = 0, **fields: Any) -> None: ...
    def step(self, record: Any) -> None: ...
    def close(self, result: Any = None) -> None: ...

    def event(self, name: str, **fields: Any) -> None:
        self.events.append((name, fields))

    def texts(self, name: str) -> list[str]:
        return [fields["text"] for event, fields in self.events if event == name]


@pytest.fixture(scope="module")
def states_of_4_and_7(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    trainer(steps=4, folder=folder).run()
    trainer(steps=7, folder=folder).run()
    assert [path.name for path in RunFolder(folder).states()] == [
        "checkpoint-000000007",
        "checkpoint-000000004",
    ]
    return folder


@pytest.fixture
def two_states(states_of_4_and_7: Path, tmp_path: Path) -> Path:
    """A run folder with the states of steps 4 and 7."""
    return Path(shutil.copytree(states_of_4_and_7, tmp_path / "run"))


def test_truncation_at_every_block_falls_back_and_says_so(two_states: Path) -> None:
    newest, previous = RunFolder(two_states).states()
    data = newest.read_bytes()
    assert len(data) > 40 * _BLOCK
    for size in range(0, len(data), _BLOCK):
        newest.write_bytes(data[:size])
        path, run, notes = RunFolder(two_states).newest()
        assert path == previous
        assert run is not None
        assert run.step == 4
        assert "checkpoint-000000007" in notes[0]
    newest.write_bytes(data)
    assert RunFolder(two_states).newest()[0] == newest


@pytest.mark.slow
def test_a_flipped_bit_anywhere_that_counts_falls_back(
    two_states: Path, rng: np.random.Generator
) -> None:
    newest, previous = RunFolder(two_states).states()
    data = newest.read_bytes()
    found = []
    for place in rng.integers(0, len(data), 60):
        broken = bytearray(data)
        broken[place] ^= 1 << int(rng.integers(8))
        newest.write_bytes(broken)
        found.append(RunFolder(two_states).newest()[0])
    # padding and unused bits of the format may hold anything
    assert found.count(previous) >= 57
    assert set(found) <= {previous, newest}


def test_a_run_goes_on_from_the_state_before_and_ends_as_if_nothing_had_happened(
    two_states: Path,
) -> None:
    newest = RunFolder(two_states).states()[0]
    newest.write_bytes(newest.read_bytes()[:-1000])
    told = Told()
    made = trainer(steps=12, folder=two_states, progress=told)
    result = made.run()
    assert (result.resumed_from, result.steps) == (4, 12)
    assert "going on from the state before it" in told.texts("broken_state")[0]
    whole = trainer(steps=12)
    whole.run()
    assert np.array_equal(weights(made), weights(whole))
    assert newest.with_name(f"{newest.name}.broken").exists()


def test_no_whole_state_is_an_error_not_a_new_run(two_states: Path) -> None:
    for path in RunFolder(two_states).states():
        path.write_bytes(b"")
    for _ in range(2):  # started again it is not a new run either
        with pytest.raises(CheckpointError, match=r"no state in .* is whole"):
            trainer(steps=12, folder=two_states).run()


def test_weights_of_a_run_are_the_best_else_the_newest_whole_ones(two_states: Path) -> None:
    assert weights_in(two_states) == RunFolder(two_states).states()[0]
    _, test = digits()
    trainer(steps=9, folder=two_states, evaluation=(test.x, test.labels)).run()
    best = two_states / "best"
    assert weights_in(two_states) == best
    best.write_bytes(b"ODTC")
    newest, previous = RunFolder(two_states).states()
    assert weights_in(two_states) == newest
    newest.unlink()
    assert weights_in(two_states) == previous


def test_a_disk_that_fills_up_is_said_and_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, told = FullDisk(monkeypatch), Told()

    def fill(record: Any) -> None:
        disk.full = record.step > 5

    made = trainer(steps=10, folder=tmp_path, save_every=0, progress=told, callbacks=[fill])
    result = made.run()
    assert result.steps == 10
    assert "No space left" in result.failed_save
    assert RunFolder(tmp_path).newest()[1].step == 5  # type: ignore[union-attr]
    assert told.texts("save_failed")
    assert not list(tmp_path.glob(".*.tmp"))
    disk.full = False
    again = trainer(steps=10, folder=tmp_path)
    assert again.run().resumed_from == 5
    assert np.array_equal(weights(made), weights(again))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 500 kB: two states of the demo's network, not three."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=500k", "tmpfs", str(place)]
    if os.geteuid() or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system needs root")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.slow
def test_a_disk_without_room_for_a_third_state(small_disk: Path) -> None:
    told = Told()
    made = trainer(steps=6, folder=small_disk / "run", save_every=0, progress=told)
    result = made.run()
    assert "No space left" in result.failed_save
    states = RunFolder(small_disk / "run").states()
    assert states
    resumed = trainer(steps=6, folder=small_disk / "run")
    assert 0 < resumed.run().resumed_from < 6
    assert np.array_equal(weights(made), weights(resumed))


def _never(record: Any) -> None:
    pytest.fail(f"step {record.step} was made")


def test_a_folder_that_cannot_be_written_to_is_refused_before_the_first_step(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("")
    made = trainer(steps=3, folder=tmp_path / "file" / "run", callbacks=[_never])
    with pytest.raises(CheckpointError, match="cannot be written to: Not a directory; choose"):
        made.run()


@pytest.mark.slow
def test_a_read_only_folder_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "ro"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(place)]
    if os.geteuid() or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a read-only file system needs root")
    try:
        with pytest.raises(CheckpointError, match="Read-only file system; choose another"):
            trainer(steps=3, folder=place).run()
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_two_processes_in_one_folder_are_refused(tmp_path: Path) -> None:
    with (
        RunFolder(tmp_path).opened(),
        pytest.raises(CheckpointError, match="another process trains in"),
    ):
        trainer(steps=1, folder=tmp_path).run()
    assert trainer(steps=1, folder=tmp_path).run().steps == 1


def test_the_marker_of_a_killed_run_tells_step_and_peak(tmp_path: Path) -> None:
    marker = Marker(tmp_path / "running")
    marker.set()
    marker.note(41, 123 * 2**20)
    os.close(marker._file)  # type: ignore[arg-type]  # as the kernel does for a killed process
    told = Told()
    trainer(steps=1, folder=tmp_path, progress=told).run()
    (text,) = told.texts("killed")
    assert "killed, some time after step 41" in text
    assert "peak was 123 MB" in text
    assert not (tmp_path / "running").exists()


def test_the_marker_knows_a_restart_of_the_device(tmp_path: Path) -> None:
    (tmp_path / "running").write_text(json.dumps({"step": 9, "peak": 1, "boot": "another"}))
    told = Told()
    trainer(steps=1, folder=tmp_path, progress=told).run()
    assert told.texts("killed") == [
        "the device restarted in the middle of the last run, after step 9"
    ]


@pytest.mark.slow
def test_a_state_in_two_files_falls_back_too(tmp_path: Path) -> None:
    for steps in (3, 6):
        made = trainer(steps=steps, folder=tmp_path)
        made.module.state._has_external_data = True
        result = made.run()
    newest, previous = RunFolder(tmp_path).states()
    assert result.bytes_written == sum(f.stat().st_size for f in tmp_path.glob(f"{newest.name}*"))
    data = newest.with_name(f"{newest.name}.data")
    whole = data.read_bytes()
    data.write_bytes(whole[:-100])
    assert RunFolder(tmp_path).newest()[0] == previous
    trainer(steps=6, folder=tmp_path).run()
    RunFolder(tmp_path).states()[1].with_name(f"{previous.name}.data").unlink()
    newest = RunFolder(tmp_path).states()[0]
    newest.unlink()
    with pytest.raises(CheckpointError, match=r"which is missing"):
        trainer(steps=9, folder=tmp_path).run()


def test_a_bad_sector_falls_back(two_states: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    newest, previous = RunFolder(two_states).states()
    before = run_folder.read_run

    def read_run(path: Path) -> Any:
        if path == newest:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return before(path)

    monkeypatch.setattr(run_folder, "read_run", read_run)
    path, _, notes = RunFolder(two_states).newest()
    assert path == previous
    assert "Input/output error" in notes[0]


def test_a_state_of_a_newer_release_is_not_thrown_away(
    two_states: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_state, "_VERSION", 0)
    with pytest.raises(CheckpointVersion, match="written by a newer release"):
        trainer(steps=9, folder=two_states).run()
    assert len(RunFolder(two_states).states()) == 2


def test_evaluation_without_an_eval_graph_is_refused_at_once() -> None:
    module, optimizer = fresh_module()
    training, test = digits()
    plain = Module(ARTIFACTS / "training_model.onnx", module.state)
    with pytest.raises(ArtifactError, match="no evaluation graph"):
        Trainer(plain, optimizer, (training.x, training.labels), steps=1, evaluation=(test.x,))


def test_what_killed_saves_left_is_removed(tmp_path: Path) -> None:
    left = tmp_path / ".checkpoint-000000003.0123456789ab.tmp"
    orphan = tmp_path / "checkpoint-000000003.data.next"
    for path in (left, orphan):
        path.write_bytes(b"half")
    trainer(steps=1, folder=tmp_path).run()
    assert not left.exists()
    assert not orphan.exists()


def test_an_exception_of_a_callback_leaves_the_run_saved(tmp_path: Path) -> None:
    def fail(record: Any) -> None:
        if record.step == 5:
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        trainer(steps=9, folder=tmp_path, callbacks=[fail]).run()
    made = trainer(steps=9, folder=tmp_path)
    assert made.run().resumed_from == 5
    whole = trainer(steps=9)
    whole.run()
    assert np.array_equal(weights(made), weights(whole))
