"""The history of a run, read from its metrics.jsonl: curves, events, and what they sum up to.

A run that was killed and started again has several attempts in one file. Steps that an attempt
did again replace those of the attempt before.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from edge_train.errors import HistoryError
from edge_train.metrics_log import NAME, read_metrics

Line = Mapping[str, Any]


@dataclass(frozen=True)
class Sample:
    """One line of steps; ``t`` in seconds of training since the first attempt began."""

    t: float
    step: int
    loss: float
    lr: float
    rows_per_second: float
    rss: float
    temperature: float
    steps: int
    bad: int


@dataclass(frozen=True)
class Event:
    """Something that happened at ``t`` seconds of training, after ``step``."""

    t: float
    step: int
    name: str
    fields: Line


@dataclass
class History:
    """A run's samples and events in order; ``broken`` lines could not be read."""

    samples: list[Sample] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    broken: int = 0
    attempts: int = 0
    seconds: float = 0.0

    @property
    def total(self) -> int | None:
        """The steps that the run was to take."""
        totals = [e.fields.get("total") for e in self.events if e.name == "start"]
        known = [total for total in totals if isinstance(total, int)]
        return known[-1] if known else None

    @property
    def end(self) -> Line | None:
        """What the last attempt ended with; None while it runs, or when it was killed."""
        last = next((e for e in reversed(self.events) if e.name in ("start", "end")), None)
        return last.fields if last is not None and last.name == "end" else None

    @property
    def killed(self) -> int:
        """How many attempts before the last ended without a word."""
        marks = [event.name for event in self.events if event.name in ("start", "end")]
        return sum(pair == ("start", "start") for pair in pairwise(marks))

    def pauses(self) -> Iterator[tuple[float, float, str]]:
        """(start, end, reason) of each pause that was told of."""
        waiting: dict[str, float] = {}
        for event in self.events:
            reason = str(event.fields.get("reason", ""))
            if event.name == "pause":
                waiting[reason] = event.t
            elif event.name == "resume" and reason in waiting:
                yield waiting.pop(reason), event.t, reason
        yield from ((start, self.seconds, reason) for reason, start in waiting.items())


def read_history(place: Path) -> History:
    """The history in a run folder, or in a metrics.jsonl itself; HistoryError if there is none."""
    path = place / NAME if place.is_dir() else place
    try:
        lines, broken = read_metrics(path)
    except FileNotFoundError:
        raise HistoryError(
            f"'{place}' has no {NAME}: give the folder of a run that `edge-train train` made"
        ) from None
    except OSError as error:
        raise HistoryError(f"'{path}' cannot be read: {error.strerror or error}") from error
    history = _sorted_in(lines, broken)
    if not history.samples and not history.events:
        raise HistoryError(f"'{path}' holds no steps and no events: it is not a run's {NAME}")
    return history


def _sorted_in(lines: list[dict[str, Any]], broken: int) -> History:
    history = History(broken=broken)
    began = t = 0.0
    step = 0
    for line in lines:
        name = line.get("event")
        if name == "start":
            began, step = t, int(_number(line.get("step"), 0.0))
            history.attempts += 1
            history.samples = [sample for sample in history.samples if sample.step <= step]
        if isinstance(name, str):
            t = max(t, began + _number(line.get("t"), t - began))
            fields = {key: value for key, value in line.items() if key not in ("event", "t")}
            history.events.append(Event(t, int(_number(line.get("step"), step)), name, fields))
        elif isinstance(line.get("step"), int):
            t = max(t, began + _number(line.get("t"), t - began))
            step = line["step"]
            history.samples.append(_sample(line, t))
    history.seconds = t
    return history


def _sample(line: Line, t: float) -> Sample:
    seconds = _number(line.get("seconds"))
    rows = _number(line.get("rows"))
    return Sample(
        t=t,
        step=line["step"],
        loss=_number(line.get("loss")),
        lr=_number(line.get("lr")),
        rows_per_second=rows / seconds if seconds > 0 else math.nan,
        rss=_number(line.get("rss")),
        temperature=_number(line.get("temperature")),
        steps=int(_number(line.get("steps"), 1.0)),
        bad=int(_number(line.get("bad"), 0.0)),
    )


def _number(value: object, default: float = math.nan) -> float:
    """A finite number of a line that anyone may have edited, else ``default``."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return default
    return float(value) if abs(value) < 1e300 else default
