"""A run within a memory budget: the largest micro-batch, then options that save memory."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from edge_train.errors import MemoryBudgetExceeded
from edge_train.kernels import native
from edge_train.memory.budget import parse_budget, shown
from edge_train.memory.estimation import Estimate, Files, Footprint, chosen_from
from edge_train.memory.graphs import Choices

#: of the budget is left free: estimates of real runs were up to this much too low
_MARGIN = 0.08
_TRIES = 6  # subsets of the parameters, by halving


@dataclass(frozen=True)
class Plan:
    """How to train on batches of ``batch`` rows within ``budget`` bytes above the idle process.

    ``micro_batch`` rows go through the graph at once, ``parts`` of them make an update; the
    gradients add up to those of the whole batch. ``module`` and ``optimizer`` are keyword arguments
    for Module and Optimizer. ``notes`` say in words what was chosen and what it changes.
    """

    batch: int
    micro_batch: int
    budget: int
    choices: Choices
    estimate: Estimate
    notes: tuple[str, ...] = ()

    @property
    def parts(self) -> int:
        """How many micro-batches make an update."""
        return -(-self.batch // self.micro_batch)

    @property
    def module(self) -> dict[str, Any]:
        """What Module is to be given beside the files."""
        return self.choices.module()

    @property
    def optimizer(self) -> dict[str, Any]:
        """What Optimizer is to be given beside the file."""
        return self.choices.optimizer()

    def text(self) -> str:
        """The plan for people: notes, table, budget."""
        lines = [*self.notes, self.estimate.table(), f"  {'budget':<18}{shown(self.budget):>12}"]
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "batch": self.batch,
            "micro_batch": self.micro_batch,
            "parts": self.parts,
            "budget": self.budget,
            "module": self.module,
            "optimizer": self.optimizer,
            "notes": list(self.notes),
            "estimate": self.estimate.as_dict(),
        }


def plan(
    artifacts: Files | str | os.PathLike[str],
    batch: int,
    budget: str | int,
    *,
    sizes: Mapping[str, int] | None = None,
    **choices: Any,
) -> Plan:
    """The way to train on ``batch`` rows that costs the least time and fits ``budget``.

    ``budget`` ("200MB", "160 MiB" or bytes) is for everything above the idle process; 8 % of it are
    left free. The largest micro-batch is taken; where not even one row fits, activations are
    recomputed, then updates made in the backward pass (where the whole batch fits at once), then
    moments kept in 8 bits. ``artifacts``, ``sizes`` and ``choices`` as for ``estimate``.

    Raises MemoryBudgetExceeded with the table and the subset of the parameters that would fit, and
    what ``estimate`` raises.
    """
    given = parse_budget(budget)
    limit = int(given * (1 - _MARGIN))
    files = Files.of(artifacts)
    first = chosen_from(choices)
    least: Estimate | None = None
    for chosen in savings(Footprint(files, first, sizes or {})):
        footprint = Footprint(files, chosen, sizes or {})
        micro, estimate = largest_micro_batch(footprint, batch, limit)
        if micro:
            return Plan(batch, micro, given, chosen, estimate, _notes(footprint, batch, micro))
        least = estimate if least is None or estimate.total < least.total else least
    assert least is not None  # there is always a first choice
    raise MemoryBudgetExceeded(_refusal(files, first, sizes or {}, given, least))


def savings(footprint: Footprint) -> Iterator[Choices]:
    """The choices to try in turn, each saving more memory and costing more than the one before:
    those of ``footprint``, and what Module and Optimizer have beside."""
    choices = footprint.choices
    yield choices
    if choices.recompute == "none":
        choices = replace(choices, recompute="auto")
        yield choices
    if native.has_ops() and not footprint.clips:
        yield replace(choices, fuse_optimizer=True)  # fits whole batches only
    if footprint.is_adamw and choices.moments == "float32":
        choices = replace(choices, moments="8bit")
        yield choices
        if native.has_ops() and not footprint.clips:
            yield replace(choices, fuse_optimizer=True)


def largest_micro_batch(footprint: Footprint, batch: int, limit: int) -> tuple[int, Estimate]:
    """The most rows at once that fit, in equal parts of ``batch``; 0 if not even one does.

    The estimate is that of the answer, or of one row.
    """
    fixed = footprint.fixed_batch
    if fixed is not None:
        adds = batch > fixed
        estimate = footprint.estimate(fixed, adds, batch)
        fits = estimate.total <= limit and not (adds and footprint.choices.fuse_optimizer)
        return (fixed if fits else 0), estimate
    estimate = footprint.estimate(batch)
    if estimate.total <= limit:
        return batch, estimate
    if footprint.choices.fuse_optimizer:
        return 0, estimate  # it keeps no gradients that could add up
    low, high = 0, batch  # low fits, high does not
    while high - low > 1:
        middle = (low + high) // 2
        fits = footprint.estimate(middle, True, batch).total <= limit
        low, high = (middle, high) if fits else (low, middle)
    if low == 0:
        return 0, footprint.estimate(1, batch > 1, batch)
    best = _equal_parts(batch, low)
    return best, footprint.estimate(best, True, batch)


def _equal_parts(batch: int, most: int) -> int:
    """A micro-batch of at most ``most`` rows: a divisor of the batch if one is not much smaller."""
    divisor = next(rows for rows in range(most, 0, -1) if batch % rows == 0)
    return divisor if 2 * divisor >= most else -(-batch // -(-batch // most))


def _notes(footprint: Footprint, batch: int, micro: int) -> tuple[str, ...]:
    notes: list[str] = []
    if micro < batch:
        notes.append(
            f"{-(-batch // micro)} micro-batches of {micro} rows make an update of {batch} rows: "
            "the gradients add up to those of the whole batch"
        )
        if footprint.has_statistics:
            notes.append(
                "BatchNormalization takes its statistics from each micro-batch, not from the whole "
                "batch: the curve is that of the smaller batch size in this respect"
            )
    return (*notes, *footprint.choices.notes())


def _refusal(
    files: Files, first: Choices, sizes: Mapping[str, int], limit: int, least: Estimate
) -> str:
    needed = int(least.total / (1 - _MARGIN))
    text = (
        f"training does not fit into {shown(limit)}: one row at a time needs a budget of "
        f"{shown(needed)} ({_MARGIN:.0%} are left free).\n{least.table()}\n"
    )
    subset = fitting_subset(files, first, sizes, int(limit * (1 - _MARGIN)))
    if subset is None:
        return text + "No part of the parameters fits either: use a smaller model or input."
    names, estimate = subset
    listed = ", ".join(repr(name) for name in names[:12])
    more = f" and {len(names) - 12} more" if len(names) > 12 else ""
    return text + (
        f"Training only the {len(names)} parameter(s) nearest to the loss would take "
        f"{shown(estimate.total)}: trainable=[{listed}]{more}"
    )


def fitting_subset(
    files: Files, first: Choices, sizes: Mapping[str, int], limit: int
) -> tuple[tuple[str, ...], Estimate] | None:
    """The most parameters, counted from the loss on, that can be trained within ``limit`` bytes a
    row at a time; None if there are none."""
    names = Footprint(files, first, sizes).nearest_first()
    found: tuple[tuple[str, ...], Estimate] | None = None
    low, high = 0, len(names)  # low fits, high does not
    for _ in range(_TRIES):
        middle = max(1, (low + high) // 2)
        if middle in (low, high):
            break
        chosen = replace(first, trainable=tuple(names[:middle]))
        footprint = Footprint(files, chosen, sizes)
        estimate = footprint.estimate(footprint.fixed_batch or 1, accumulates=True)
        if estimate.total <= limit:
            low, found = middle, (tuple(names[:middle]), estimate)
        else:
            high = middle
    return found
