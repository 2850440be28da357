"""Learning-rate schedules for the Trainer: each a closure of the step.

A schedule may watch a metric (plateau) and may end the training (plateau, until). What it
remembers is JSON, lies in the run's checkpoint and is put back by a resume.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edge_train.counts import check_count
from edge_train.errors import CheckpointError
from edge_train.governor import StopReason
from edge_train.optimizer import check_number
from edge_train.scheduler import linear_factor

Rate = Callable[[int], float]
#: (metric, whether larger is better) -> why the training shall end, or None
Watch = Callable[[float, bool], "StopReason | None"]


@dataclass(frozen=True)
class Schedule:
    """``rate(step)`` is the rate of the update after ``step`` updates.

    ``memory`` is what the closures of ``rate`` and ``watch`` share and a checkpoint keeps;
    ``parts`` are the schedules that this one is made of.
    """

    kind: str
    rate: Rate
    watch: Watch | None = None
    memory: dict[str, Any] = field(default_factory=dict)
    parts: tuple[Schedule, ...] = ()

    def observe(self, metric: float, larger_is_better: bool) -> StopReason | None:
        """Tells the schedule an evaluation's metric; returns why the training shall end, if so."""
        return None if self.watch is None else self.watch(metric, larger_is_better)

    def state(self) -> dict[str, Any]:
        """What a resume needs, as JSON."""
        return {
            "kind": self.kind,
            "memory": dict(self.memory),
            "parts": [part.state() for part in self.parts],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes over what ``state`` gave before; CheckpointError for another schedule's."""
        if state.get("kind") != self.kind or len(state.get("parts", ())) != len(self.parts):
            raise CheckpointError(
                f"the run was started with the schedule '{state.get('kind')}', now it is "
                f"'{self.kind}'; use the same one, or start a new run folder"
            )
        self.memory.update(state["memory"])
        for part, stored in zip(self.parts, state["parts"], strict=True):
            part.restore(stored)


def constant(rate: float, warmup: int = 0) -> Schedule:
    """``rate``, reached linearly over the first ``warmup`` steps."""
    lr, warmup = check_number("rate", rate), check_count("warmup", warmup, 0)
    return Schedule("constant", lambda step: lr * min(1.0, _ramp(step, warmup)))


def linear(rate: float, total: int, warmup: int = 0) -> Schedule:
    """Linear from 0 to ``rate`` over ``warmup`` steps, then to 0 at ``total``.

    The schedule of LinearLRScheduler: the first update of a warm-up has rate 0.
    """
    lr, total, warmup = _counts(rate, total, warmup)
    return Schedule("linear", lambda step: lr * linear_factor(step, warmup, total))


def cosine(rate: float, total: int, warmup: int = 0, floor: float = 0.0) -> Schedule:
    """Linear warm-up, then half a cosine from ``rate`` to ``floor`` at ``total``.

    ``floor + (rate - floor) (1 + cos(pi (s - W) / (T - W))) / 2`` (Loshchilov & Hutter 2017).
    """
    lr, total, warmup = _counts(rate, total, warmup)
    low = _at_most("floor", floor, lr)

    def at(step: int) -> float:
        if step < warmup:
            return lr * _ramp(step, warmup)
        done = min(1.0, (step - warmup) / max(1, total - warmup))
        return low + (lr - low) * (1 + math.cos(math.pi * done)) / 2

    return Schedule("cosine", at)


def one_cycle(
    rate: float,
    total: int,
    rise: float = 0.3,
    start_factor: float = 0.04,
    end_factor: float = 4e-6,
) -> Schedule:
    """Half a cosine up to ``rate`` over the fraction ``rise`` of the steps, and one down.

    From ``start_factor * rate`` to ``end_factor * rate`` (Smith & Topin 2018, in the two phases of
    PyTorch's OneCycleLR).
    """
    lr, total, _ = _counts(rate, total, 0)
    rise = check_number("rise", rise)
    if not 0 < rise < 1:
        raise ValueError(f"rise: expected a fraction between 0 and 1, got {rise}")
    low, last = (
        lr * _at_most("start_factor", start_factor, 1),
        lr * _at_most("end_factor", end_factor, 1),
    )
    top = rise * total - 1

    def at(step: int) -> float:
        if step <= top:
            return _between(low, lr, step / top)
        return _between(lr, last, min(1.0, (step - top) / max(1.0, total - 1 - top)))

    return Schedule("one_cycle", at)


def stepwise(rate: float, every: int, factor: float = 0.1) -> Schedule:
    """``rate * factor ** (step // every)``."""
    lr, every = check_number("rate", rate), check_count("every", every, 1)
    factor = check_number("factor", factor)
    return Schedule("step", lambda step: lr * factor ** (step // every))


def plateau(
    rate: float,
    factor: float = 0.1,
    patience: int = 5,
    threshold: float = 1e-4,
    stop_after: int | None = None,
    warmup: int = 0,
) -> Schedule:
    """Multiplies the rate by ``factor`` after ``patience`` evaluations without progress.

    Progress is an improvement of the watched metric by more than ``threshold`` times its best
    value's size. ``stop_after`` reductions without progress in between end the training: at 0,
    patience alone does.
    """
    lr, patience = check_number("rate", rate), check_count("patience", patience, 1)
    factor, threshold = _at_most("factor", factor, 1), check_number("threshold", threshold)
    warmup = check_count("warmup", warmup, 0)
    if stop_after is not None:
        stop_after = check_count("stop_after", stop_after, 0)
    memory: dict[str, Any] = {"best": None, "waited": 0, "scale": 1.0, "in_vain": 0}

    def watch(metric: float, larger_is_better: bool) -> StopReason | None:
        if _improves(metric, memory["best"], threshold, larger_is_better):
            memory.update(best=metric, waited=0, in_vain=0)
            return None
        memory["waited"] += 1
        if memory["waited"] < patience:
            return None
        if stop_after is not None and memory["in_vain"] >= stop_after:
            return StopReason.NO_PROGRESS
        memory.update(waited=0, scale=memory["scale"] * factor, in_vain=memory["in_vain"] + 1)
        return None

    def at(step: int) -> float:
        return lr * float(memory["scale"]) * min(1.0, _ramp(step, warmup))

    return Schedule("plateau", at, watch, memory)


def join(parts: Sequence[tuple[Schedule, int]]) -> Schedule:
    """One schedule after another: (schedule, steps) pairs; the last one goes on for ever.

    Each counts its own steps from 0.
    """
    if not parts:
        raise ValueError("join: expected at least one (schedule, steps) pair, got none")
    schedules = tuple(schedule for schedule, _ in parts)
    for schedule in schedules:
        _check_schedule("join", schedule)
    ends: list[int] = []
    for _, steps in parts:
        ends.append((ends[-1] if ends else 0) + check_count("steps", steps, 1))
    memory: dict[str, Any] = {"at": 0}

    def place(step: int) -> int:
        return next((i for i, end in enumerate(ends) if step < end), len(ends) - 1)

    def at(step: int) -> float:
        index = memory["at"] = place(step)
        return schedules[index].rate(step - (ends[index - 1] if index else 0))

    def watch(metric: float, larger_is_better: bool) -> StopReason | None:
        current: Schedule = schedules[memory["at"]]
        return current.observe(metric, larger_is_better)

    return Schedule("join", at, watch, memory, schedules)


def until(schedule: Schedule, target: float) -> Schedule:
    """``schedule``, and the training ends when the watched metric reaches ``target``."""
    _check_schedule("until", schedule)
    if isinstance(target, (bool, str, bytes)) or not hasattr(target, "__float__"):
        raise TypeError(f"target must be a number, got {target!r} of type {type(target).__name__}")
    if not math.isfinite(target):
        raise ValueError(f"target must be finite, got {target}")

    def watch(metric: float, larger_is_better: bool) -> StopReason | None:
        if metric >= target if larger_is_better else metric <= target:
            return StopReason.TARGET_REACHED
        return schedule.observe(metric, larger_is_better)

    return Schedule("until", schedule.rate, watch, parts=(schedule,))


def _counts(rate: float, total: int, warmup: int) -> tuple[float, int, int]:
    total, warmup = check_count("total", total, 1), check_count("warmup", warmup, 0)
    if warmup > total:
        raise ValueError(f"warmup: expected at most total ({total}) steps, got {warmup}")
    return check_number("rate", rate), total, warmup


def _check_schedule(name: str, schedule: object) -> None:
    if not isinstance(schedule, Schedule):
        raise TypeError(
            f"{name}: expected a Schedule, got {schedule!r} of type {type(schedule).__name__}"
        )


def _at_most(name: str, value: float, most: float) -> float:
    number = check_number(name, value)
    if number > most:
        raise ValueError(f"{name}: expected at most {most}, got {value}")
    return number


def _ramp(step: int, warmup: int) -> float:
    return step / warmup if step < warmup else 1.0


def _between(start: float, end: float, done: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * done)) / 2


def _improves(metric: float, best: float | None, threshold: float, larger: bool) -> bool:
    if best is None:
        return math.isfinite(metric)
    margin = threshold * abs(best)
    return metric > best + margin if larger else metric < best - margin
