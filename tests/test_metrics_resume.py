"""The log of a run that was killed and goes on: no step twice, none missing without a word."""

from __future__ import annotations

import json
import logging
import os
import resource
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.child import run_python, succeed

from edge_train import metrics_resume
from edge_train.metrics_log import MetricsLog, read_metrics
from edge_train.progress import Progress, StepRecord
from edge_train.run_history import read_history

RECORD = StepRecord(1, 1, 0.5, 1e-3, 32, 0.1)


def at(step: int, steps: int = 1, **more: Any) -> dict[str, Any]:
    return {"step": step, "epoch": 1, "loss": 1 / step, "steps": steps, "t": float(step), **more}


def start(step: int = 0) -> dict[str, Any]:
    return {"event": "start", "total": 99, "step": step, "t": 0.0}


def write(path: Path, *lines: dict[str, Any], tail: bytes = b"") -> None:
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    path.write_bytes(text.encode() + tail)


def steps_of(lines: Iterable[dict[str, Any]]) -> list[int]:
    """Every step that lines of steps tell of, in the file's order."""
    told: list[int] = []
    for line in lines:
        if "event" not in line:
            told += range(line["step"] - line["steps"] + 1, line["step"] + 1)
    return told


def gone_on(path: Path, step: int) -> list[dict[str, Any]]:
    progress = Progress(path, quiet=True)
    progress.event("resumed", step=step)
    progress.start(99, step)
    progress.step(replace(RECORD, step=step + 1))
    progress.close({"reason": "completed"})
    lines, broken = read_metrics(path)
    assert broken == 0
    return lines


def events(lines: Iterable[dict[str, Any]]) -> list[str]:
    return [line["event"] for line in lines if "event" in line]


def test_steps_that_are_made_again_leave_the_file(tmp_path: Path) -> None:
    path = tmp_path / "m"
    evaluation = {"event": "evaluation", "metrics": {"loss": 0.5}, "t": 3.0}
    lines = [at(1), at(3, 2), {**evaluation, "step": 3}, at(4), at(9, 5), {**evaluation, "step": 9}]
    write(path, start(), *lines, {"event": "save_failed", "step": 9, "t": 9.0})
    after = gone_on(path, 3)
    assert steps_of(after) == [1, 2, 3, 4]
    assert events(after) == [
        *("start", "evaluation", "save_failed", "cut"),
        *("resumed", "start", "end"),
    ]
    cut = next(line for line in after if line.get("event") == "cut")
    assert (cut["step"], cut["until"], cut["t"]) == (3, 9, 3.0)
    assert cut["text"] == "steps 4 to 9 were not saved and are made again"
    history = read_history(path)
    assert [sample.step for sample in history.samples] == [1, 3, 4]
    assert (history.attempts, history.killed) == (2, 1)


@pytest.mark.parametrize(
    ("step", "loss", "told"), [(3, 0.1 + 0.2, 1), (3, 0.5, 2), (6, 0.1 + 0.2, 2)]
)
def test_an_evaluation_that_is_made_again_is_told_once(
    tmp_path: Path, step: int, loss: float, told: int
) -> None:
    path = tmp_path / "m"
    evaluation = {"event": "evaluation", "metrics": {"loss": 0.1 + 0.2, "nan": None}, "t": 3.0}
    write(path, start(), at(3, 3), {"step": 3, **evaluation}, at(4))
    progress = Progress(path, quiet=True)
    progress.start(99, 3)
    progress.event("evaluation", step=step, metrics={"loss": loss, "nan": float("nan")}, text="")
    progress.close()
    assert events(read_metrics(path)[0]).count("evaluation") == told


def test_a_line_across_the_state_leaves_a_gap_that_is_said(tmp_path: Path) -> None:
    """A file of before, when saves did not end lines; or a state older than the newest."""
    path = tmp_path / "m"
    write(path, start(), at(10, 10), at(20, 10))
    after = gone_on(path, 15)
    assert steps_of(after) == [*range(1, 11), 16]
    gap = next(line for line in after if line.get("event") == "gap")
    assert (gap["after"], gap["step"]) == (10, 15)
    assert gap["text"] == "nothing was kept of steps 11 to 15"
    # killed again before anything new: the gap is known
    assert events(gone_on(path, 15)).count("gap") == 1


def test_a_log_that_is_new_says_what_it_lacks(tmp_path: Path) -> None:
    after = gone_on(tmp_path / "m", 7)
    assert events(after) == ["resumed", "gap", "start", "end"]
    assert after[1]["text"] == "nothing was kept of steps 1 to 7"
    assert events(gone_on(tmp_path / "n", 0)) == ["resumed", "start", "end"]


@pytest.mark.parametrize("tail", [b'{"step":12,"lo', b"\0" * 300, b'{"step":12}'])
def test_a_torn_end_does_no_harm(tail: bytes, tmp_path: Path) -> None:
    path = tmp_path / "m"
    write(path, start(), at(1), at(2), tail=tail)
    gone = Progress(path, quiet=True)
    gone.start(99, 1)
    gone.close()
    lines, broken = read_metrics(path)
    assert steps_of(line for line in lines if "steps" in line) == [1]
    assert broken == (not tail.endswith(b"}"))
    assert "cut" in events(lines)


def test_another_run_keeps_what_the_first_told(tmp_path: Path) -> None:
    """A script that is run again appends to the file it was given; it goes on with its own."""
    path = tmp_path / "m"
    write(path, start(), at(50, 50), {"event": "end", "reason": "completed", "t": 50.0})
    assert steps_of(gone_on(path, 0)) == [*range(1, 51), 1]
    write(
        path,
        *(start(), at(50, 50), {"event": "end", "t": 50.0}),
        *(start(), at(20, 20), at(30, 10)),
    )
    after = gone_on(path, 20)
    assert steps_of(after) == [*range(1, 51), *range(1, 21), 21]
    assert "gap" not in events(after)
    history = read_history(path)
    assert [sample.step for sample in history.samples] == [20, 21]


def test_a_run_that_was_never_saved_starts_over(tmp_path: Path) -> None:
    path = tmp_path / "m"
    write(path, start(), at(1), at(2))
    after = gone_on(path, 0)
    assert steps_of(after) == [1]
    assert "cut" in events(after)


@pytest.mark.parametrize(
    "end", [{"reason": "failed", "detail": "KeyboardInterrupt()"}, {"failed_save": "disk full"}]
)
def test_a_run_that_ended_without_a_save_starts_over(end: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "m"
    write(path, start(), at(1), at(2), {**end, "event": "end", "t": 2.0})
    after = gone_on(path, 0)
    assert steps_of(after) == [1]
    assert events(after) == ["start", "end", "cut", "resumed", "start", "end"]
    write(path, start(), at(1), at(2), {"failed_save": "", "event": "end", "t": 2.0})
    assert steps_of(gone_on(path, 0)) == [1, 2, 1]


def test_words_that_look_like_steps_are_no_steps(tmp_path: Path) -> None:
    path = tmp_path / "m"
    note = {"event": "note", "text": 'see "step":900 and "event":"end"', "t": 1.0}
    write(path, start(), at(1), note, at(2))
    after = gone_on(path, 1)
    assert note in after
    assert steps_of(after) == [1, 2]


def test_a_file_that_cannot_be_changed_still_tells_what_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "m"
    write(path, start(), at(1), at(2), at(3))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(metrics_resume, "rewrite", full)
    with caplog.at_level(logging.WARNING, "edge_train"):
        after = gone_on(path, 1)
    assert "still has steps that are made again" in caplog.text
    assert steps_of(after) == [1, 2, 3, 2]
    assert [sample.step for sample in read_history(path).samples] == [1, 2]


def test_a_save_finds_its_steps_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    sync = os.fsync

    def noted(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_ino)
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    log = MetricsLog(tmp_path / "m", clock=lambda: 1000.0)  # no time passes: nothing is due
    for step in range(1, 8):
        log.step(replace(RECORD, step=step))
    log.sync()
    lines, _ = read_metrics(tmp_path / "m")
    assert steps_of(lines) == [1, 2, 3, 4, 5, 6, 7]
    assert (tmp_path / "m").stat().st_ino in synced
    log.step(replace(RECORD, step=8))
    log.sync()
    assert steps_of(read_metrics(tmp_path / "m")[0])[-1] == 8


def test_a_disk_that_refuses_does_not_stop_a_save(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    log = MetricsLog(tmp_path / "file" / "m")
    log.step(RECORD)
    log.sync()
    log.go_on(5)
    (tmp_path / "file").unlink()
    log.close()
    assert steps_of(read_metrics(tmp_path / "file" / "m")[0]) == [1]


def test_a_disk_that_takes_a_part_leaves_no_line_twice(tmp_path: Path) -> None:
    path = tmp_path / "m"
    log = MetricsLog(path, clock=lambda: 0.0)
    log.event("start", {"step": 0})
    log.flush()
    before = path.read_bytes()
    for step in range(1, 9):
        log.step(replace(RECORD, step=step))
        log._finish_line()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 300, limits[1]))  # in the third line
    try:
        log.sync()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == before
    log.close()
    lines, broken = read_metrics(path)
    assert (steps_of(lines), broken) == ([1, 2, 3, 4, 5, 6, 7, 8], 0)


def test_a_number_of_thousands_of_digits_is_none(tmp_path: Path) -> None:
    path = tmp_path / "m"
    write(path, start(), at(1), tail=b'{"step":' + b"9" * 5000 + b"}\n")
    progress = Progress(path, quiet=True)
    progress.start(99, 1)
    progress.close()
    lines, broken = read_metrics(path)
    assert (steps_of(lines), broken) == ([1], 1)


def test_steps_that_a_refusing_disk_made_us_forget_are_a_gap(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    log = MetricsLog(tmp_path / "file" / "m", clock=lambda: 0.0)
    log.event("start", {"step": 0})
    for step in range(1, 6001):
        log.step(replace(RECORD, step=step))
        log._finish_line()
        if step % 500 == 0:
            log.flush()
    (tmp_path / "file").unlink()
    log.close()
    lines, broken = read_metrics(tmp_path / "file" / "m")
    assert broken == 0
    assert lines[0]["text"] == "nothing was kept of steps 1 to 4000"
    assert steps_of(lines) == list(range(4001, 6001))
    # one that goes on in the midst of it tells of what it lacks itself
    after = gone_on(tmp_path / "file" / "m", 3000)
    assert [line["text"] for line in after if line.get("event") == "gap"] == [
        "nothing was kept of steps 1 to 3000"
    ]


#: saves every 7th step by a clock that counts steps, writes its log every 4th step besides; the
#: parent loads everything but makes no session: a fork of it starts at once
_CHILD = """
import os, signal, sys
from pathlib import Path
from types import SimpleNamespace
sys.path.insert(0, sys.argv[2])
from edge_train.progress import Progress
from edge_train.training import keeper
from support.digits import trainer
folder, steps = Path(sys.argv[1]), 0
keeper.time = SimpleNamespace(monotonic=lambda: steps)

def run(last):
    progress = Progress(folder / "metrics.jsonl", quiet=True)

    def each(record):
        global steps
        steps += 1
        if record.step % 4 == 0:
            progress.sync()
        if record.step == last:
            os.kill(os.getpid(), signal.SIGKILL)

    options = dict(steps=40, epochs=99, folder=folder, save_every=7)
    trainer(**options, callbacks=[each], progress=progress).run()

for last in (5, 15, 21, 33, 99):
    child = os.fork()
    if child == 0:
        run(last)
        os._exit(0)
    print(os.waitpid(child, 0)[1])
"""


@pytest.mark.slow
def test_killed_four_times_the_log_has_every_step_once(tmp_path: Path) -> None:
    """kill -9 before the first save, right after one, in the midst of one's step: 40 steps,
    each told of once, and where the log had told of lost ones, that is said.
    """
    told = succeed(run_python(_CHILD, tmp_path / "run", Path(__file__).parent, timeout=60))
    assert told.split() == ["9", "9", "9", "9", "0"]
    lines, broken = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert broken == 0
    assert steps_of(lines) == list(range(1, 41))
    assert "gap" not in events(lines)
    starts = [line["step"] for line in lines if line.get("event") == "start"]
    assert starts == [0, 0, 14, 14, 28]
    cuts = [(line["step"], line["until"]) for line in lines if line.get("event") == "cut"]
    assert cuts == [(0, 4), (14, 20), (28, 32)]  # nothing beyond 14 was written at 15
