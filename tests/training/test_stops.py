"""Why a run stops, and what it writes to the card on the way."""

from __future__ import annotations

import errno
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.digits import digits, trainer, weights

from edge_train.governor import Governor, Limits, PauseReason
from edge_train.progress import Progress, StepRecord
from edge_train.schedules import constant, plateau, until
from edge_train.sensors import Battery, Readings
from edge_train.trainer import StopReason
from edge_train.training.run_folder import RunFolder


class _Sensors:
    """Sensors that tell what the test says."""

    missing: dict[str, str] = {}  # noqa: RUF012

    def __init__(self, readings: Readings) -> None:
        self.readings = readings

    def read(self, names: Any, **options: Any) -> Readings:
        return self.readings


def test_u106_the_reason_is_in_the_result_and_in_the_log(tmp_path: Path) -> None:
    sensors: Any = _Sensors(Readings(battery=Battery(9.0, False)))
    governor = Governor(Limits(min_battery=20, max_pause=0.1, interval=0.05), sensors=sensors)
    log = RunFolder(tmp_path).metrics
    made = trainer(steps=50, folder=tmp_path, governor=governor, progress=Progress(log, quiet=True))
    result = made.run()
    assert result.reason is StopReason.LOW_BATTERY
    assert result.reason.resumable
    assert "battery at 9 %" in result.detail
    assert result.paused[PauseReason.LOW_BATTERY.value] > 0.05
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    events = [line for line in lines if "event" in line]
    assert [event["event"] for event in events] == ["start", "pause", "resume", "end"]
    assert events[1]["reason"] == events[3]["reason"] == "low_battery"
    again = trainer(steps=50, folder=tmp_path).run()
    assert (again.reason, again.resumed_from) == (StopReason.COMPLETED, result.steps)


def test_a_time_budget_ends_saved(tmp_path: Path) -> None:
    made = trainer(steps=10**6, folder=tmp_path, governor=Governor(Limits(time_budget=0.2)))
    result = made.run()
    assert result.reason is StopReason.TIME_BUDGET
    assert result.saved == RunFolder(tmp_path).states()[0]


def test_stop_from_another_thread() -> None:
    made = trainer(steps=10**6)
    threading.Timer(0.2, made.stop).start()
    assert made.run().reason is StopReason.REQUESTED


def test_a_callback_names_its_own_reason() -> None:
    result = trainer(steps=9, callbacks=[lambda record: StopReason.OFFLINE]).run()
    assert (result.reason, result.steps) == (StopReason.OFFLINE, 1)


@pytest.fixture
def handled() -> Iterator[list[int]]:
    """Handlers of the test's own, whatever started it; the signals that they get."""
    seen: list[int] = []
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = {n: signal.signal(n, lambda number, _: seen.append(number)) for n in numbers}
    yield seen
    for number, handler in before.items():
        signal.signal(number, handler)


def _send(number: int, times: int = 1) -> Callable[[StepRecord], None]:
    def send(record: StepRecord) -> None:
        for _ in range(times if record.step == 3 else 0):
            os.kill(os.getpid(), number)

    return send


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_u105_a_signal_lets_the_step_finish_and_saves(
    tmp_path: Path, handled: list[int], number: signal.Signals
) -> None:
    result = trainer(steps=9, folder=tmp_path, callbacks=[_send(number)]).run()
    interrupted = number == signal.SIGINT
    assert result.reason is (StopReason.INTERRUPTED if interrupted else StopReason.TERMINATED)
    assert result.reason.resumable
    assert (result.steps, result.saved) == (3, tmp_path / "checkpoint-000000003")
    os.kill(os.getpid(), number)
    assert handled == [number]  # the run gave the handler back


def test_a_second_ctrl_c_does_not_wait(tmp_path: Path, handled: list[int]) -> None:
    made = trainer(steps=9, folder=tmp_path, callbacks=[_send(signal.SIGINT, 2)])
    with pytest.raises(KeyboardInterrupt):
        made.run()
    assert not (tmp_path / "running").exists()
    assert handled == []


def test_an_ignored_signal_stays_ignored(handled: list[int]) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    result = trainer(steps=5, callbacks=[_send(signal.SIGHUP)]).run()
    assert (result.reason, result.steps) == (StopReason.COMPLETED, 5)


def test_in_a_thread_signals_are_left_alone() -> None:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(trainer(steps=2).run()))
    thread.start()
    thread.join()
    assert found[0].reason is StopReason.COMPLETED


def test_a_schedule_ends_the_run_and_a_resume_keeps_to_it(tmp_path: Path) -> None:
    _, test = digits()
    options: dict[str, Any] = {
        "rows": 1437,
        "epochs": 20,
        "evaluation": (test.x, test.labels),
        "folder": tmp_path,
    }
    first = trainer(schedule=until(constant(0.01), 0.4), **options).run()
    assert first.reason is StopReason.TARGET_REACHED
    assert first.metrics["loss"] <= 0.4
    assert first.best is not None
    assert first.steps == first.best.step < 900
    again = trainer(schedule=until(constant(0.01), 0.4), **options).run()
    assert (again.reason, again.steps) == (StopReason.TARGET_REACHED, first.steps)


def _until(target: float) -> Any:
    return until(plateau(0.01, factor=0.5, patience=1, threshold=0.1), target)


def _plateau(stop_after: int) -> Any:
    return plateau(0.01, factor=0.5, patience=1, threshold=0.3, stop_after=stop_after)


@pytest.mark.parametrize(
    ("near", "far", "reason"),
    [
        (lambda: _until(2.3), lambda: _until(1.0), StopReason.TARGET_REACHED),
        (lambda: _plateau(0), lambda: _plateau(2), StopReason.NO_PROGRESS),
    ],
)
def test_a_run_that_ended_goes_on_to_another_end(
    tmp_path: Path, near: Any, far: Any, reason: StopReason
) -> None:
    """As one that had this end from the start; asked again in between it stays where it is."""
    whole = trainer(schedule=far(), epochs=20, evaluate_every=3)
    end = whole.run()
    options: dict[str, Any] = {"epochs": 20, "evaluate_every": 3, "folder": tmp_path}
    first = trainer(schedule=near(), **options).run()
    assert (first.reason, end.reason) == (reason, reason)
    assert first.steps < end.steps
    again = trainer(schedule=near(), **options).run()
    assert (again.steps, again.bytes_written) == (first.steps, 0)
    part = trainer(schedule=far(), **options)
    result = part.run()
    assert (result.reason, result.steps) == (reason, end.steps)
    assert np.array_equal(weights(whole), weights(part))


def test_what_a_callback_ended_stays_ended(tmp_path: Path) -> None:
    ends = [lambda record: StopReason.TARGET_REACHED if record.step == 2 else None]
    options: dict[str, Any] = {"steps": 9, "folder": tmp_path, "evaluate_every": 2}
    trainer(schedule=_until(0.0), callbacks=ends, **options).run()
    again = trainer(schedule=_until(0.0), **options).run()
    assert (again.reason, again.steps) == (StopReason.TARGET_REACHED, 2)


def test_a_plateau_is_the_same_after_a_resume(tmp_path: Path) -> None:
    def schedule() -> Any:
        return plateau(0.01, factor=0.5, patience=1, threshold=0.3, stop_after=2)

    options: dict[str, Any] = {"epochs": 9, "evaluate_every": 3}
    whole = trainer(schedule=schedule(), **options)
    end = whole.run()
    stop = {"callbacks": [lambda record: record.step in (4, 6)]}  # 6 is to be evaluated
    for steps in (4, 6, None):
        part = trainer(schedule=schedule(), folder=tmp_path, **stop, **options)
        result = part.run()
        assert result.steps == (steps or end.steps)
    assert result.reason is end.reason is StopReason.NO_PROGRESS
    assert np.array_equal(weights(whole), weights(part))


def _written() -> int:
    """Bytes that this process has handed to write calls."""
    with open("/proc/self/io") as file:
        return int(next(line.split()[1] for line in file if line.startswith("wchar")))


def test_u107_between_saves_nothing_goes_to_the_card(tmp_path: Path) -> None:
    seen: list[int] = []
    log = Progress(RunFolder(tmp_path).metrics, quiet=True)
    options: dict[str, Any] = {"folder": tmp_path, "progress": log}
    made = trainer(steps=100, callbacks=[lambda _: seen.append(_written())], **options)
    result = made.run()
    assert seen[-1] - seen[1] < 1024
    size = sum(path.stat().st_size for path in tmp_path.glob("checkpoint-*"))
    assert result.bytes_written == size
    made = trainer(steps=8, folder=tmp_path, fresh=True, save_every=0)
    assert made.run().bytes_written > 7 * size


def test_u103_a_file_system_without_links_modes_locks_and_folder_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any, **options: Any) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    before = os.fsync

    def fsync(descriptor: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        before(descriptor)

    for name in ("chmod", "link", "symlink"):
        monkeypatch.setattr(os, name, refuse)
    monkeypatch.setattr("fcntl.flock", refuse)
    monkeypatch.setattr(os, "fsync", fsync)
    trainer(steps=4, folder=tmp_path).run()
    made = trainer(steps=7, folder=tmp_path)
    assert made.run().resumed_from == 4
    whole = trainer(steps=7)
    whole.run()
    assert np.array_equal(weights(made), weights(whole))
