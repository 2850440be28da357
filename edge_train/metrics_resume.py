"""What a run that goes on does with its log: lines of steps that are made again leave it.

A kill loses the work since the last state, the log has told of some of it. A state is saved only
after the lines of its steps are in the log, so that nothing before it is missing.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge_train import atomic

#: events that a resumed run comes by again; all others happened once
_REPEATED = frozenset(("evaluation", "gap", "skipped"))
# quotes inside of texts are escaped: no text looks like it
_STEP = re.compile(rb'"step":(\d{1,18})')
# an attempt that ended so may have saved nothing: it is one that was killed
_UNSAVED = re.compile(rb'"reason":"failed"|"failed_save":"[^"]')


@dataclass
class Findings:
    """What the lines of a log say at the start after ``step``.

    ``last`` is the last step that they tell of up to there, ``until`` that of the ``again`` lines
    about steps beyond it, ``t`` the time of these. ``ended``: the attempt before came to its end
    and could save what it made.
    Lines before line ``first`` are of other runs, which were over before this one began.
    ``judged`` are the metrics that an evaluation at ``step`` found.
    """

    step: int
    last: int = 0
    until: int = 0
    again: int = 0
    t: float = 0.0
    ended: bool = False
    first: int = 0
    judged: dict[str, Any] | None = None

    @staticmethod
    def of(lines: Iterable[bytes], step: int) -> Findings:
        """Reads the lines once; what is no line of a log counts for nothing."""
        found = Findings(step)
        for number, raw in enumerate(lines):
            found._see(raw, number)
        return found

    def _see(self, raw: bytes, number: int) -> None:
        match = _STEP.search(raw)
        if b'"event":"end"' in raw:
            self.ended = _UNSAVED.search(raw) is None
        elif b'"event":"start"' in raw:
            if self.ended and match is not None and int(match[1]) == 0:
                self.first, self.last, self.until, self.again = number, 0, 0, 0
                self.judged = None
            self.ended = False
        if match is None:
            return
        if is_again(raw, self.step):
            line = json.loads(raw)
            self.again += 1
            self.until = max(self.until, line["step"])
            self.t = _number(line.get("t"))
        elif int(match[1]) <= self.step and (b'"event":' not in raw or b'"event":"gap"' in raw):
            self.last = max(self.last, int(match[1]))
        elif int(match[1]) == self.step and b'"event":"evaluation"' in raw:
            self.judged = _metrics(raw)

    @property
    def is_over(self) -> bool:
        """Whether this is another run in the file of one that ended, which keeps its lines."""
        return self.step == 0 and self.ended

    def cut(self) -> dict[str, Any]:
        """The line that stands for those that left."""
        text = f"steps {self.step + 1} to {self.until} were not saved and are made again"
        return {"step": self.step, "until": self.until, "t": self.t, "text": text}

    def gap(self, last: int) -> dict[str, Any] | None:
        """What tells of steps after ``last`` that no line tells of; None if there are none."""
        if last >= self.step:
            return None
        text = f"nothing was kept of steps {last + 1} to {self.step}"
        return {"step": self.step, "after": last, "text": text}


def dropped(lines: Iterable[bytes]) -> dict[str, Any] | None:
    """The gap that lines leave which no file took; None where they tell of no steps."""
    first, last = math.inf, 0
    for raw in lines:
        line = json.loads(raw)
        if "event" not in line:
            first, last = min(first, line["step"] - line["steps"]), line["step"]
        elif line["event"] == "gap":
            first, last = min(first, line["after"]), line["step"]
    return None if last <= first else Findings(last).gap(int(first))


def is_again(raw: bytes, step: int) -> bool:
    """Whether a line is about steps beyond ``step`` that a run which goes on there makes again."""
    match = _STEP.search(raw)
    if match is None or int(match[1]) <= step:
        return False
    try:
        line = json.loads(raw)
    except (ValueError, RecursionError):
        return False
    steps = isinstance(line, dict) and isinstance(line.get("step"), int) and line["step"] > step
    return steps and line.get("event", "evaluation") in _REPEATED


def read(path: Path, step: int) -> Findings:
    """What the log at ``path`` says; nothing where there is none. OSError from the disk."""
    try:
        with open(path, "rb") as lines:
            return Findings.of(lines, step)
    except FileNotFoundError:
        return Findings(step)


def rewrite(path: Path, found: Findings, mark: bytes) -> None:
    """Takes the lines that are made again out of the log, with ``mark`` (a line) at its end.

    The old file stays until the new one is on the disk. OSError from the disk.
    """
    with open(path, "rb") as lines, atomic.replacing(path) as file:
        for number, raw in enumerate(lines):
            if number < found.first or not is_again(raw, found.step):
                file.write(raw if raw.endswith(b"\n") else raw + b"\n")
        file.write(mark)


def _metrics(raw: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(raw).get("metrics")
    except (ValueError, RecursionError, AttributeError):
        return None
    return found if isinstance(found, dict) else None


def _number(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) and abs(value) < 1e300 else 0.0
