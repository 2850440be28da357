"""metrics.jsonl: one JSON object a line, few bytes an hour, safe against a torn last line.

Steps are summed up for a while (2 % of the run's time so far, at most 10 s) and lines are written
to the file once a minute and before each save, so that a memory card lives.
"""

from __future__ import annotations

import enum
import json
import logging
import math
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

from edge_train import metrics_resume
from edge_train.errors import CheckpointError
from edge_train.metrics_resume import Findings

NAME = "metrics.jsonl"
_log = logging.getLogger("edge_train.progress")

_LONGEST = 10.0  # seconds of training in one line
_SHARE = 0.02
_FLUSHED = 60.0  # seconds between two writes
_MOST_KEPT = 2000  # lines kept in memory while the disk refuses them


class MetricsLog:
    """Appends to ``path``; a disk that refuses is said once and never ends a run."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.path = Path(path).absolute()  # the working folder may change while it is written
        self._clock = clock
        self._started = self._written = self._opened = clock()
        self._lines: list[bytes] = []
        self._sum: dict[str, Any] = {}
        self._torn = self._refused = False
        self._made = False  # there was a file since this attempt began
        self._hold: Callable[[], None] | None = None
        self._judged: tuple[int, dict[str, Any]] | None = None  # by an attempt before, and kept

    def guard(self, folder: Path, hold: Callable[[], None]) -> None:
        """Asks ``hold`` before each write, if the file is in ``folder``: whether it is this run's.

        CheckpointError of ``hold`` counts as a disk that refuses. Without a guard a file that was
        rewritten or removed and made anew is gone on with.
        """
        self._hold = hold if self.path.parent == Path(folder).absolute() else None

    def go_on(self, step: int) -> None:
        """Makes the file that of a run which goes on after ``step``: no step twice, no gap unsaid.

        Lines of later steps leave the file, one that says so takes their place. A file that
        cannot be changed stays as it is: the start of this attempt tells which lines count.
        """
        self._made = False
        try:
            found = metrics_resume.read(self.path, step)
            if found.again and not found.is_over:
                mark = self._encoded({**found.cut(), "event": "cut", "at": round(time.time(), 1)})
                metrics_resume.rewrite(self.path, found, mark)
                self._torn = False
        except OSError as error:
            _log.warning("%s still has steps that are made again: %s", self.path, error)
            return
        if found.judged is not None and not found.is_over:
            self._judged = (step, found.judged)
        kept = Findings.of(self._lines, step).last
        gap = found.gap(max(found.last, kept))
        if gap is not None:
            self.event("gap", gap)

    def sync(self) -> None:
        """Puts all there is on the disk: a state of the run is about to be saved."""
        self._finish_line()
        self.flush()
        with suppress(OSError):  # flush told of a disk that refuses
            descriptor = os.open(self.path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def step(self, record: Any) -> None:
        """Adds a StepRecord; ``loss`` of a line is the mean of its finite losses."""
        if not self._sum:
            self._sum = {"steps": 0, "loss": 0.0, "finite": 0, "rows": 0, "seconds": 0.0}
        total = self._sum
        total["steps"] += 1
        total["rows"] += record.rows
        total["seconds"] += record.seconds
        if math.isfinite(record.loss):
            total["loss"] += record.loss
            total["finite"] += 1
        for name in ("step", "epoch", "lr", "temperature"):
            total[name] = getattr(record, name)
        total["rss"] = max(record.rss or 0, total.get("rss") or 0) or None
        now = self._clock()
        if now - self._opened >= min(_LONGEST, _SHARE * (now - self._started)):
            self._finish_line()
        if now - self._written >= _FLUSHED:
            self.flush()

    def event(self, name: str, fields: Mapping[str, Any]) -> None:
        """Adds a line for something that happened; fields are made plain JSON."""
        judged = fields.get("step"), plain(fields.get("metrics"))
        if name == "evaluation" and judged == self._judged:
            return  # made again because the state was saved before it: told once
        self._finish_line()
        t = round(self._clock() - self._started, 3)
        self._add({**plain(fields), "event": name, "at": round(time.time(), 1), "t": t})

    def flush(self) -> None:
        """Writes what is kept; whole lines only count once their newline is there."""
        self._written = self._clock()
        if not self._lines:
            return
        data = b"".join(self._lines)
        try:
            if self._hold is not None:
                self._hold()
            # looked at each time: an editor may have written it anew, without the last newline
            is_torn = self._torn or _is_torn(self.path)
            self._append(b"\n" + data if is_torn else data)
        except (OSError, CheckpointError) as error:
            self._torn = True  # a part may have been written
            self._drop()
            if not self._refused:
                self._refused = True
                _log.warning("%s cannot be written: %s; training goes on", self.path, error)
            return
        self._torn = self._refused = False
        self._lines.clear()

    def _drop(self) -> None:
        """Forgets the oldest lines where there are too many; one that says so stays of them."""
        if len(self._lines) <= _MOST_KEPT:
            return
        gap = metrics_resume.dropped(self._lines[:-_MOST_KEPT])
        mark = [] if gap is None else [self._encoded({**gap, "event": "gap"})]
        self._lines[:-_MOST_KEPT] = mark

    def close(self) -> None:
        """Writes everything."""
        self._finish_line()
        self.flush()

    def _append(self, data: bytes) -> None:
        if not self._made:  # a folder that was there and is gone is not made again
            self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "ab", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            if file.write(data) != len(data):
                file.truncate(size)  # its lines are kept, and written again
                raise OSError("the disk took a part of it")
            self._made = True

    def _finish_line(self) -> None:
        total, self._sum = self._sum, {}
        self._opened = self._clock()
        if not total:
            return
        finite = total.pop("finite")
        total["loss"] = total["loss"] / finite if finite else None
        total["bad"] = total["steps"] - finite
        total["t"] = self._opened - self._started
        order = ("step", "epoch", "loss", "lr", "rows", "seconds", "steps", "rss", "temperature")
        line = {name: total[name] for name in (*order, "t", "bad") if total[name] is not None}
        if not line["bad"]:
            del line["bad"]
        self._add({name: _short(value) for name, value in line.items()})

    def _add(self, line: Mapping[str, Any]) -> None:
        self._lines.append(self._encoded(line))

    @staticmethod
    def _encoded(line: Mapping[str, Any]) -> bytes:
        text = json.dumps(line, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode("utf-8", "replace") + b"\n"


def plain(value: Any) -> Any:
    """``value`` as JSON has it: dataclasses and mappings as objects, what has no form as text."""
    if is_dataclass(value) and not isinstance(value, type):
        value = {name: getattr(value, name) for name in value.__dataclass_fields__}
    if isinstance(value, Mapping):
        return {str(plain(key)): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    if isinstance(value, enum.Enum):
        return plain(value.value)
    if hasattr(value, "item") and not getattr(value, "shape", ()):
        value = value.item()  # a NumPy number
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)


def read_metrics(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The lines of a metrics.jsonl, and how many of them are broken (a torn end, zero bytes).

    OSError if there is none.
    """
    lines, broken = [], 0
    for raw in path.read_bytes().split(b"\n"):
        if not raw.strip():
            continue
        try:
            line = json.loads(raw)
        except (ValueError, RecursionError):
            line = None
        if isinstance(line, dict):
            lines.append(line)
        else:
            broken += 1
    return lines, broken


def _short(value: Any) -> Any:
    return float(f"{value:.7g}") if isinstance(value, float) else value


def _is_torn(path: Path) -> bool:
    """Whether the file does not end with a whole line."""
    try:
        with open(path, "rb") as file:
            if file.seek(0, os.SEEK_END) == 0:
                return False
            file.seek(-1, os.SEEK_END)
            return file.read(1) != b"\n"
    except OSError:
        return False
