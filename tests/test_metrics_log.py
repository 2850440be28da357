"""metrics.jsonl: few bytes, whole lines, a torn end, a disk that refuses."""

from __future__ import annotations

import enum
import json
import logging
import math
import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from edge_train.errors import CheckpointError
from edge_train.metrics_log import MetricsLog, plain, read_metrics
from edge_train.progress import StepRecord

RECORD = StepRecord(1, 1, 0.5, 1e-3, 32, 0.1, 100 << 20, 50.0)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def take_steps(log: MetricsLog, clock: Clock, count: int, seconds: float, first: int = 1) -> None:
    for step in range(first, first + count):
        clock.now += seconds
        log.step(replace(RECORD, step=step, loss=1 / step, seconds=seconds))


def test_u107_an_hour_writes_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """U107: by time, not by step: under 200 kB and 62 writes an hour (docs/commands.md)."""
    clock, writes = Clock(), []
    log = MetricsLog(tmp_path / "metrics.jsonl", clock)
    append = log._append

    def counted(data: bytes) -> None:
        writes.append(len(data))
        append(data)

    monkeypatch.setattr(log, "_append", counted)
    take_steps(log, clock, 36_000, 0.1)
    log.close()
    assert len(writes) <= 62
    assert 20_000 < sum(writes) < 200_000
    lines, broken = read_metrics(tmp_path / "metrics.jsonl")
    assert broken == 0
    assert sum(line["steps"] for line in lines) == 36_000
    assert sum(line["rows"] for line in lines) == 36_000 * 32
    assert lines[-1]["step"] == 36_000


def test_a_short_run_has_a_line_a_step_at_first(tmp_path: Path) -> None:
    clock = Clock()
    log = MetricsLog(tmp_path / "m", clock)
    take_steps(log, clock, 30, 0.1)
    log.close()
    lines, _ = read_metrics(tmp_path / "m")
    assert [line["step"] for line in lines] == list(range(1, 31))
    assert lines[3]["loss"] == 0.25


def test_a_relative_path_is_that_of_the_making(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    clock = Clock()
    log = MetricsLog(Path("m"), clock)
    take_steps(log, clock, 2, 0.1)
    log.flush()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    take_steps(log, clock, 2, 0.1, first=3)
    log.sync()
    lines, _ = read_metrics(tmp_path / "m")
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert not Path("m").exists()


def test_losses_that_are_not_finite_are_counted(tmp_path: Path) -> None:
    clock = Clock()
    log = MetricsLog(tmp_path / "m", clock)
    clock.now = 1000.0  # lines of ten seconds
    log.step(RECORD)
    for loss in (math.nan, math.inf, 0.25, 0.75):
        clock.now += 1
        log.step(replace(RECORD, loss=loss))
    log.close()
    lines, broken = read_metrics(tmp_path / "m")
    assert broken == 0
    assert lines[-1]["loss"] == 0.5
    assert lines[-1]["bad"] == 2
    assert lines[-1]["steps"] == 4
    only = MetricsLog(tmp_path / "n", clock)
    only.step(replace(RECORD, loss=math.nan))
    only.close()
    assert "loss" not in read_metrics(tmp_path / "n")[0][0]


def test_a_torn_end_costs_its_own_line_only(tmp_path: Path) -> None:
    """Cut at every byte, then gone on: the lines before and after are all there."""
    path = tmp_path / "m"
    log = MetricsLog(path)
    log.event("start", {"total": 3})
    log.event("save", {"step": 2})
    log.close()
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for cut in range(first, len(whole) + 1):
        for tail in (b"", b"\0" * 64):
            path.write_bytes(whole[:cut] + tail)
            after = MetricsLog(path)
            after.event("start", {"total": 3})
            after.close()
            lines, broken = read_metrics(path)
            events = [line["event"] for line in lines]
            assert events[0] == events[-1] == "start"
            assert broken <= 1
            kept = ["start", "save", "start"] if cut >= len(whole) - 1 else ["start", "start"]
            if not tail:
                assert events == kept


def test_a_disk_that_refuses_is_said_once_and_nothing_is_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    log = MetricsLog(tmp_path / "file" / "m")
    with caplog.at_level(logging.WARNING, "edge_train"):
        for number in range(5):
            log.event("save", {"step": number})
            log.flush()
    assert len(caplog.records) == 1
    assert "training goes on" in caplog.text
    (tmp_path / "file").unlink()
    log.close()
    lines, broken = read_metrics(tmp_path / "file" / "m")
    assert [line["step"] for line in lines] == [0, 1, 2, 3, 4]
    assert broken == 0


def test_a_full_disk_keeps_no_half_lines(tmp_path: Path) -> None:
    class Full(MetricsLog):
        room = 40

        def _append(self, data: bytes) -> None:
            super()._append(data[: self.room])
            if len(data) > self.room:
                raise OSError(28, "No space left on device")

    log = Full(tmp_path / "m")
    log.event("start", {"total": 1})
    log.flush()
    log.event("save", {"step": 1})
    log.room = 10_000
    log.close()
    lines, broken = read_metrics(tmp_path / "m")
    assert [line["event"] for line in lines] == ["start", "save"]
    assert broken == 1


def test_memory_is_bounded_while_the_disk_refuses(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    log = MetricsLog(tmp_path / "file" / "m")
    for number in range(10_000):
        log.event("save", {"step": number})
        if number % 100 == 0:
            log.flush()
    assert len(log._lines) <= 2100


class Colour(enum.Enum):
    RED = "red"


@dataclass(frozen=True)
class Point:
    x: object
    y: object


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Point(Colour.RED, Path("/a")), {"x": "red", "y": "/a"}),
        ({Colour.RED: 1.5, 2: None}, {"red": 1.5, "2": None}),
        ((math.nan, math.inf, np.float32(0.5), np.int64(3)), [None, None, 0.5, 3]),
        (np.array([1, 2]), "[1 2]"),
        (np.bool_(True), True),
        (object, "<class 'object'>"),
        (Point, f"{Point!s}"),
        ("\ud800", "\ud800"),
    ],
)
def test_plain(value: object, expected: object) -> None:
    assert plain(value) == expected
    json.dumps(plain(value), allow_nan=False)


@pytest.mark.parametrize(
    "data", [b"", b"\n\n", b"not json\n", b"\xff\xfe\n", b"[1]\n", b"[" * 9999]
)
def test_what_is_no_line_is_skipped(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(data)
    lines, broken = read_metrics(tmp_path / "m")
    assert lines == []
    assert broken == (1 if data.strip() else 0)


def test_a_folder_that_is_removed_is_not_made_again(tmp_path: Path) -> None:
    clock = Clock()
    log = MetricsLog(tmp_path / "run" / "m", clock)
    take_steps(log, clock, 2, 0.1)
    log.flush()
    shutil.rmtree(tmp_path / "run")
    take_steps(log, clock, 2, 0.1, first=3)
    log.sync()
    assert not (tmp_path / "run").exists()
    (tmp_path / "run").mkdir()  # as the next save does, which locks it
    log.sync()
    assert [line["step"] for line in read_metrics(log.path)[0]] == [3, 4]


def test_the_log_of_another_process_is_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock, lost = Clock(), [False]

    def hold() -> None:
        if lost[0]:
            raise CheckpointError("another process has it")

    logs = [MetricsLog(tmp_path / name, clock) for name in ("m", "deep/m")]
    for log in logs:
        log.guard(tmp_path, hold)
        take_steps(log, clock, 3, 0.1)
        log.flush()
    before = logs[0].path.read_bytes()
    lost[0] = True
    for log in logs:
        take_steps(log, clock, 2, 0.1, first=4)
        log.close()
    assert logs[0].path.read_bytes() == before
    assert caplog.messages == [
        f"{logs[0].path} cannot be written: another process has it; training goes on"
    ]
    assert len(read_metrics(logs[1].path)[0]) == 5  # outside the folder that is guarded


REWRITES = {
    "sed -i": lambda data: data.replace(b"0.1", b"0.2"),
    "shorter": lambda data: data[: data.index(b"\n") + 1],
    "without the last newline": lambda data: data[:-1],
    "empty": lambda data: b"",
}


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("name", REWRITES)
def test_a_log_that_was_rewritten_goes_on(tmp_path: Path, name: str, in_place: bool) -> None:
    log = MetricsLog(tmp_path / "m")
    log.event("start", {"lr": 0.1})
    log.event("save", {"step": 1})
    log.flush()
    data = REWRITES[name](log.path.read_bytes())
    (tmp_path / "new").write_bytes(data)
    if in_place:
        log.path.write_bytes(data)
    else:
        os.replace(tmp_path / "new", log.path)
    for step in (2, 3):
        log.event("save", {"step": step})
        log.flush()
    lines, broken = read_metrics(log.path)
    kept = [json.loads(line)["event"] for line in data.splitlines()]
    assert ([line["event"] for line in lines], broken) == ([*kept, "save", "save"], 0)
