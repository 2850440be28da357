"""Progress of a run: a bar on a terminal, plain lines elsewhere, and metrics.jsonl for the report.

The Trainer calls ``start``, ``step`` and ``event``, and ``close`` with its result.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from tqdm import tqdm

from edge_train.metrics_log import MetricsLog, plain
from edge_train.printable import printable

_SMOOTH = 0.98  # of the loss, by step
_REFRESH = 1.0  # seconds between two looks of the bar
_FIRST_LINE = 5.0


@dataclass(frozen=True)
class StepRecord:
    """One training step.

    ``step`` and ``epoch`` count from 1; ``rows`` is the logical batch; ``seconds`` of the step
    without pauses; ``rss`` in bytes and ``temperature`` in °C where known.
    """

    step: int
    epoch: int
    loss: float
    lr: float
    rows: int
    seconds: float
    rss: int | None = None
    temperature: float | None = None


class Progress:
    """Shows a run on ``stream`` (None: stderr), and keeps its curves in the file ``metrics``.

    A terminal gets a bar, refreshed once a second; anything else a plain line every ``every``
    seconds. ``bar`` chooses one; ``quiet`` shows nothing. A stream that is gone is left alone.
    """

    def __init__(
        self,
        metrics: Path | None = None,
        *,
        stream: TextIO | None = None,
        bar: bool | None = None,
        quiet: bool = False,
        every: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = None if metrics is None else MetricsLog(metrics, clock)
        self._stream = stream if stream is not None else sys.stderr
        self._wants_bar = _is_terminal(self._stream) if bar is None else bar
        self._shows = not quiet
        self._every, self._clock = every, clock
        self._bar: _Bar | None = None
        self._meter = Meter(None, 0, clock())
        self._next = clock()

    def start(self, total: int | None, step: int = 0, **fields: Any) -> None:
        """A run of ``total`` steps (None: unknown) begins after ``step``; fields go to the log."""
        self._meter = Meter(total, step, self._clock())
        self._next = self._clock() + (_REFRESH if self._wants_bar else _FIRST_LINE)
        if self._log is not None:
            self._log.go_on(step)
            self._log.event("start", {"total": total, "step": step, **fields})
            self._log.flush()
        if self._wants_bar:
            self._show(self._open_bar)

    def step(self, record: StepRecord) -> None:
        """One step is done."""
        now = self._clock()
        self._meter.add(record, now)
        if self._log is not None:
            self._log.step(record)
        if now >= self._next:
            self._refresh(now)

    def event(self, name: str, **fields: Any) -> None:
        """Something happened ("pause", "save", ...): a line for people and one in the log."""
        if self._log is not None:
            self._log.event(name, fields)
        text = fields.get("text") or " ".join(f"{k}={plain(v)}" for k, v in fields.items())
        about = fields.get("reason") if "text" in fields else None
        words = [name.replace("_", " "), str(plain(about)).replace("_", " ") if about else ""]
        self._show(lambda: self._write(f"{' '.join(filter(None, words))}: {text}"))

    def guard(self, folder: Path, hold: Callable[[], None]) -> None:
        """Writes a log in ``folder`` only where ``hold`` raises no error; the Trainer gives it."""
        if self._log is not None:
            self._log.guard(folder, hold)

    def sync(self) -> None:
        """Puts the log on the disk; the Trainer asks for it before each save of its state."""
        if self._log is not None:
            self._log.sync()

    def close(self, result: Any = None) -> None:
        """The run is over: ``result`` (a mapping or a dataclass) is the last line of the log."""
        if self._log is not None:
            fields = plain(result)
            self._log.event("end", fields if isinstance(fields, dict) else {"result": fields})
            self._log.close()
        if self._meter.last is not None:
            self._refresh(self._clock())
        if self._bar is not None:
            self._show(self._bar.close)
            self._bar = None

    def _refresh(self, now: float) -> None:
        self._next = now + (_REFRESH if self._wants_bar else self._every)
        if self._bar is not None:
            self._show(self._draw)
        elif not self._wants_bar:
            self._show(lambda: self._write(self._meter.text(now)))

    def _open_bar(self) -> None:
        total = self._meter.total
        form = "{percentage:3.0f}%|{bar}| {desc}" if total else "{desc}"
        self._bar = _Bar(
            total=total,
            initial=self._meter.done,
            file=self._stream,
            bar_format=form,
            ncols=self._columns(),
            miniters=1,
        )

    def _draw(self) -> None:
        bar = self._bar
        if bar is not None:
            columns = self._columns()
            bar.n, bar.ncols = self._meter.done, columns
            text = _encodable(self._meter.text(self._clock(), columns - 12), self._stream)
            bar.set_description_str(text, refresh=False)
            bar.refresh()

    def _columns(self) -> int:
        """The width to draw in; a serial console does not know its own."""
        try:
            columns = os.get_terminal_size(self._stream.fileno()).columns
        except (OSError, ValueError, AttributeError):
            columns = 0
        # some terminals wrap at the last column, and Ctrl-C echoes its two letters behind the bar
        return max((columns or 80) - 3, 1)

    def _write(self, text: str) -> None:
        text = "\n".join(map(printable, _encodable(text, self._stream).split("\n")))
        if self._bar is not None:
            self._bar.write(text, file=self._stream)
        else:
            self._stream.write(f"{text}\n")
            self._stream.flush()

    def _show(self, action: Callable[[], object]) -> None:
        """Does something on the stream; a terminal that went away must not end a run."""
        if not self._shows:
            return
        try:
            action()
        except (OSError, ValueError):
            self._shows = False


class Meter:
    """Smooths what steps tell: loss over steps, rates over time (pauses count as time)."""

    def __init__(self, total: int | None, step: int, now: float) -> None:
        self.total, self.done = total, step
        self.last: StepRecord | None = None
        self._loss, self._weight = 0.0, 0.0
        self._marks: list[tuple[float, int, int]] = [(now, step, 0)]  # time, step, rows so far
        self._rows = 0

    def add(self, record: StepRecord, now: float) -> None:
        """Takes one step in."""
        self.last, self.done = record, record.step
        self._rows += record.rows
        if math.isfinite(record.loss):
            self._loss = _SMOOTH * self._loss + (1 - _SMOOTH) * record.loss
            self._weight = _SMOOTH * self._weight + (1 - _SMOOTH)
        if now - self._marks[-1][0] >= _REFRESH:
            self._marks = [*self._marks[-30:], (now, record.step, self._rows)]

    def text(self, now: float, columns: int = 1000) -> str:
        """One line, the most important first, as much of it as fits."""
        parts = list(self._parts(now))
        while len(parts) > 2 and len("  ".join(parts)) > columns:
            parts.pop()
        return "  ".join(parts)

    def _parts(self, now: float) -> list[str]:
        record = self.last
        parts = [f"{self.done}/{self.total}" if self.total else f"{self.done}"]
        if record is None:
            return parts
        loss = f"{self._loss / self._weight:.4g}" if self._weight else "not finite"
        parts.append(f"loss {loss}")
        since, steps, rows = self._marks[0]
        elapsed = max(now - since, 1e-9)
        rate, speed = (self.done - steps) / elapsed, (self._rows - rows) / elapsed
        if self.total and rate > 0:
            parts.append(f"ETA {duration((self.total - self.done) / rate)}")
        parts += [f"lr {record.lr:.2g}", f"{speed:.4g} rows/s"]
        if record.rss is not None:
            parts.append(f"{record.rss / 2**20:.0f} MB")
        if record.temperature is not None:
            parts.append(f"{record.temperature:.0f} °C")
        return parts


def duration(seconds: float) -> str:
    """Hours, minutes and seconds: "1:02:03", "02:03"."""
    whole = int(max(seconds, 0.0) + 0.5)
    hours, rest = divmod(whole, 3600)
    clock = f"{rest // 60:02d}:{rest % 60:02d}"
    return f"{hours}:{clock}" if hours else clock


def _encodable(text: str, stream: TextIO) -> str:
    """``text`` without what the stream has no bytes for (LANG=C has no degree sign)."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "replace").decode(encoding)


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except (AttributeError, ValueError):
        return False


class _Bar(tqdm):  # type: ignore[misc]
    monitor_interval = 0  # no thread of its own
