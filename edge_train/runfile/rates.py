"""From [schedule] of a run file to a Schedule."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from typing import Any

from edge_train import schedules
from edge_train.runfile.options import Rate
from edge_train.runfile.reading import RunFileError, section
from edge_train.schedules import Schedule

_KINDS: Mapping[str, tuple[Callable[..., Schedule], tuple[str, ...]]] = {
    "constant": (schedules.constant, ("warmup",)),
    "linear": (schedules.linear, ("total", "warmup")),
    "cosine": (schedules.cosine, ("total", "warmup", "floor")),
    "one_cycle": (schedules.one_cycle, ("total", "rise", "start_factor", "end_factor")),
    "step": (schedules.stepwise, ("every", "factor")),
    "plateau": (
        schedules.plateau,
        ("factor", "patience", "threshold", "stop_after", "warmup"),
    ),
}


def schedule_of(rate: Rate) -> Schedule | Callable[[int], Schedule]:
    """The schedule, or a function from the run's steps to it where ``rate`` leaves them open.

    RunFileError names the key that is missing or wrong.
    """
    needs_total = rate.total is None and (
        rate.kind in ("linear", "cosine", "one_cycle") or rate.kind == "join"
    )
    return partial(_made_schedule, rate) if needs_total else _made_schedule(rate, rate.total)


def _made_schedule(rate: Rate, total: int | None) -> Schedule:
    try:
        made = _joined(rate, total) if rate.kind == "join" else _single(rate, total)
        return made if rate.target is None else schedules.until(made, rate.target)
    except (ValueError, TypeError) as error:
        if isinstance(error, RunFileError):
            raise
        raise RunFileError(f"schedule.{error}") from error


def _single(rate: Rate, total: int | None) -> Schedule:
    if rate.kind not in _KINDS:
        near = difflib.get_close_matches(rate.kind, [*_KINDS, "join"], n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"known are {[*_KINDS, 'join']}"
        raise ValueError(f"kind: there is no '{rate.kind}'; {hint}")
    if rate.rate is None:
        raise ValueError("rate: say the learning rate")
    if rate.kind == "step" and rate.every is None:
        raise ValueError("every: say after how many steps the rate is cut")
    make, names = _KINDS[rate.kind]
    values = {name: getattr(rate, name) for name in names}
    if "total" in values:
        values["total"] = total if rate.total is None else rate.total
    _check_unused(rate, (*names, "rate"))
    return make(rate.rate, **values)


def _check_unused(rate: Rate, known: tuple[str, ...]) -> None:
    default = Rate()
    for field in fields(rate):
        unused = field.name not in (*known, "kind", "target")
        if unused and getattr(rate, field.name) != getattr(default, field.name):
            raise ValueError(f"{field.name}: means nothing to kind '{rate.kind}'")


def _joined(rate: Rate, total: int | None) -> Schedule:
    if not rate.parts:
        raise ValueError("parts: a join needs [[schedule.parts]], each with its steps")
    made: list[tuple[Schedule, int]] = []
    spent = 0
    for number, part in enumerate(rate.parts):
        place = f"schedule.parts[{number}]"
        own, steps = _part(part, place, None if total is None else total - spent)
        try:
            made.append((_single(own, steps), steps))
        except (ValueError, TypeError) as error:
            raise RunFileError(f"{place}: {error}") from error
        spent += steps
    _check_unused(rate, ("parts", "total"))
    return schedules.join(made)


def _part(part: Mapping[str, Any], place: str, left: int | None) -> tuple[Rate, int]:
    """A table of [[schedule.parts]] as a Rate, and its steps: those that are ``left`` unless said.

    RunFileError names the part.
    """
    table = dict(part)
    if "parts" in table or table.get("kind") == "join":
        raise RunFileError(f"{place}: a join cannot hold a join; list its parts here")
    if "target" in table:
        raise RunFileError(f"{place}: target: is that of the whole run; write it in [schedule]")
    steps = table.pop("steps", left)
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        says = f"the run's {left} that are left" if "steps" not in part else repr(steps)
        raise RunFileError(f"{place}: steps: expected a whole number >= 1, got {says}")
    return section(Rate, table, place), steps
