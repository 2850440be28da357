"""Progress: a bar on a terminal, plain lines elsewhere, and a stream that goes away."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import struct
import sys
import termios
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from edge_train.governor import StopReason
from edge_train.progress import Meter, Progress, StepRecord, duration

RECORD = StepRecord(1, 1, 0.5, 1e-3, 32, 0.1, 112 << 20, 61.4)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def go(progress: Progress, clock: Clock, count: int, seconds: float, total: int | None) -> None:
    progress.start(total)
    for step in range(1, count + 1):
        clock.now += seconds
        progress.step(replace(RECORD, step=step, loss=2.0))


def test_plain_lines_once_a_minute() -> None:
    clock, stream = Clock(), io.StringIO()
    progress = Progress(stream=stream, clock=clock)
    go(progress, clock, 600, 0.5, 1200)
    progress.close({"reason": StopReason.COMPLETED})
    lines = stream.getvalue().splitlines()
    assert len(lines) == 6  # after 5, 65, ... 245 s, and at the end
    assert lines[1] == "130/1200  loss 2  ETA 08:55  lr 0.001  64 rows/s  112 MB  61 °C"
    assert lines[-1].startswith("600/1200  loss 2  ETA 05:00")


def test_events_are_lines_at_once(tmp_path: Path) -> None:
    stream = io.StringIO()
    progress = Progress(tmp_path / "m", stream=stream)
    progress.start(10)
    progress.event("pause", reason="low_battery", step=3, text="battery at 9 %")
    progress.event("save_failed", step=3, text="disk full")
    progress.event("save", step=4, bytes=10)
    progress.close({"reason": StopReason.LOW_BATTERY})
    assert stream.getvalue().splitlines() == [
        "pause low battery: battery at 9 %",
        "save failed: disk full",
        "save: step=4 bytes=10",
    ]
    lines = [json.loads(line) for line in (tmp_path / "m").read_text().splitlines()]
    assert [line["event"] for line in lines] == ["start", "pause", "save_failed", "save", "end"]
    assert lines[1]["reason"] == "low_battery"
    assert lines[-1]["reason"] == "low_battery"


def test_quiet_shows_nothing_and_still_logs(tmp_path: Path) -> None:
    clock, stream = Clock(), io.StringIO()
    progress = Progress(tmp_path / "m", stream=stream, quiet=True, clock=clock)
    go(progress, clock, 100, 1.0, 100)
    progress.event("save")
    progress.close()
    assert stream.getvalue() == ""
    assert len((tmp_path / "m").read_text().splitlines()) > 10


def test_without_an_end_there_is_no_eta() -> None:
    clock, stream = Clock(), io.StringIO()
    progress = Progress(stream=stream, clock=clock)
    go(progress, clock, 10, 1.0, None)
    progress.close()
    last = stream.getvalue().splitlines()[-1]
    assert last.startswith("10  loss 2  lr 0.001  32 rows/s")


def on_terminal(columns: int) -> str:
    """What 30 steps of a second each draw on a terminal."""
    above, below = pty.openpty()
    size = struct.pack("HHHH", 24, columns, 0, 0)
    fcntl.ioctl(below, termios.TIOCSWINSZ, size)
    drawn: list[bytes] = []

    def read() -> None:
        with suppress(OSError):  # EIO: the writing side is closed
            while data := os.read(above, 4096):
                drawn.append(data)

    reader = threading.Thread(target=read)
    reader.start()
    clock = Clock()
    with os.fdopen(below, "w", encoding="utf-8", errors="replace") as stream:
        progress = Progress(stream=stream, clock=clock)
        go(progress, clock, 15, 1.0, 30)
        progress.event("evaluation", step=15, text="loss 0.2")
        progress.close()
    reader.join()
    os.close(above)
    return b"".join(drawn).decode("utf-8", "replace")


@pytest.mark.parametrize("columns", [0, 40, 60, 100])
def test_a_bar_on_a_terminal_fits(columns: int) -> None:
    """0: a serial console that does not know its width."""
    drawn = on_terminal(columns)
    width = columns or 80
    states = [part for part in re.split(r"[\r\n]+", drawn) if "|" in part]
    assert len(states) >= 15
    assert " 50%|" in states[-1]
    assert "15/30" in states[-1]
    assert "loss 2" in states[-1]
    assert ("rows/s" in states[-1]) == (width >= 60)
    assert max(map(len, states)) <= width - 3  # room for the ^C of a terminal
    assert "evaluation: loss 0.2\r\n" in drawn


@pytest.mark.parametrize("bar", [True, False])
def test_a_stream_that_goes_away_does_not_end_a_run(bar: bool, tmp_path: Path) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(5, "Input/output error")

    clock = Clock()
    progress = Progress(tmp_path / "m", stream=Gone(), bar=bar, clock=clock)
    go(progress, clock, 100, 1.0, 100)
    progress.event("save")
    progress.close()
    assert '"event":"end"' in (tmp_path / "m").read_text()
    closed = io.StringIO()
    closed.close()
    Progress(stream=closed, clock=clock).event("save")


@pytest.mark.parametrize("bar", [True, False])
def test_a_stream_without_a_degree_sign(bar: bool) -> None:
    clock, raw = Clock(), io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    progress = Progress(stream=stream, bar=bar, clock=clock)
    go(progress, clock, 20, 1.0, 20)
    progress.event("pause", reason="heat", text="81 °C \ud800")
    progress.close()
    stream.flush()
    assert b"pause heat: 81 ?C ?" in raw.getvalue()
    assert b"20/20  loss 2" in raw.getvalue()


def test_the_loss_is_smoothed_from_the_first_step_on() -> None:
    meter = Meter(None, 0, 0.0)
    for step, loss in enumerate([4.0, 4.0, float("nan"), 4.0], 1):
        meter.add(replace(RECORD, step=step, loss=loss), float(step))
    assert "loss 4 " in meter.text(4.0)
    for step in range(5, 100):
        meter.add(replace(RECORD, step=step, loss=step % 2), float(step))
    shown = re.search(r"loss ([\d.]+)", meter.text(100.0))
    assert shown is not None
    assert 0.4 < float(shown[1]) < 1.5


def test_a_resumed_run_counts_its_own_speed() -> None:
    meter = Meter(1000, 900, 0.0)
    for step in range(901, 951):
        meter.add(replace(RECORD, step=step), float(step - 900))
    assert "950/1000" in meter.text(50.0)
    assert "ETA 00:50" in meter.text(50.0)
    assert "32 rows/s" in meter.text(50.0)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "00:00"), (59.6, "01:00"), (3599, "59:59"), (3723, "1:02:03"), (360000, "100:00:00")],
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_the_default_stream_is_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(stream=sys.stderr)
    progress.event("save", text="done")
    assert capsys.readouterr() == ("", "save: done\n")


@pytest.mark.parametrize("bar", [True, False])
def test_names_in_events_cannot_write_to_the_terminal(bar: bool) -> None:
    stream = io.StringIO()
    progress = Progress(stream=stream, bar=bar)
    progress.start(2)
    progress.event("unreadable", text="a\x1b[2J\rb.png")
    progress.close()
    assert r"unreadable: a\x1b[2J\rb.png" in stream.getvalue()
