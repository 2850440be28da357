"""From [schedule] of a run file to a Schedule."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import partial

from edge_train import schedules
from edge_train.runfile.options import Rate
from edge_train.runfile.reading import RunFileError
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
        raise RunFileError(f"schedule.kind: there is no '{rate.kind}'; {hint}")
    if rate.rate is None:
        raise RunFileError("schedule.rate: say the learning rate")
    if rate.kind == "step" and rate.every is None:
        raise RunFileError("schedule.every: say after how many steps the rate is cut")
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
            raise RunFileError(f"schedule.{field.name}: means nothing to kind '{rate.kind}'")


def _joined(rate: Rate, total: int | None) -> Schedule:
    if not rate.parts:
        raise RunFileError("schedule.parts: a join needs [[schedule.parts]], each with its steps")
    known = {field.name for field in fields(Rate)} - {"parts", "target"}
    made: list[tuple[Schedule, int]] = []
    spent = 0
    for number, part in enumerate(rate.parts):
        table = dict(part)
        steps = table.pop("steps", None if total is None else total - spent)
        unknown = sorted(set(table) - known)
        if unknown or not isinstance(steps, int) or steps < 1:
            what = f"there is no key '{unknown[0]}'" if unknown else "steps: expected a number >= 1"
            raise RunFileError(f"schedule.parts[{number}]: {what}")
        own = replace(Rate(), **table)
        made.append((_single(own, steps), steps))
        spent += steps
    _check_unused(rate, ("parts", "total"))
    return schedules.join(made)
