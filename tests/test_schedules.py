"""Schedules: their curves, what they remember, when they end a run."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from edge_train.errors import CheckpointError
from edge_train.governor import StopReason
from edge_train.scheduler import linear_factor
from edge_train.schedules import (
    Schedule,
    constant,
    cosine,
    join,
    linear,
    one_cycle,
    plateau,
    stepwise,
    until,
)

#: PyTorch 2.13: OneCycleLR(max_lr=0.5, total_steps=20, pct_start=0.3, cycle_momentum=False)
ONE_CYCLE = [0.02, 0.0658359214, 0.185835921, 0.334164079, 0.454164079, 0.5, 0.493732003,
             0.475242316, 0.445458089, 0.405872827, 0.358471501, 0.305631011, 0.250001,
             0.194370989, 0.141530499, 0.094129173, 0.0545439112, 0.024759684, 0.00626999688,
             2e-06]  # fmt: skip
#: PyTorch 2.13: CosineAnnealingLR(T_max=10, eta_min=0.05) from 0.5
COSINE = [0.5, 0.488987716, 0.457028824, 0.407251682, 0.344528824, 0.275, 0.205471176,
          0.142748318, 0.0929711763, 0.0610122838, 0.05]  # fmt: skip


def rates(schedule: Schedule, steps: int) -> list[float]:
    return [schedule.rate(step) for step in range(steps)]


def test_one_cycle_is_that_of_pytorch() -> None:
    assert rates(one_cycle(0.5, 20), 20) == pytest.approx(ONE_CYCLE, rel=1e-8)
    assert rates(one_cycle(0.5, 20, rise=0.31), 20) != pytest.approx(ONE_CYCLE, rel=1e-3)


def test_cosine_is_that_of_pytorch() -> None:
    assert rates(cosine(0.5, 10, floor=0.05), 11) == pytest.approx(COSINE, rel=1e-8)
    assert cosine(0.5, 10, floor=0.05).rate(99) == 0.05
    assert rates(cosine(0.4, 10, warmup=4), 4) == pytest.approx([0, 0.1, 0.2, 0.3])


def test_linear_is_that_of_linear_lr_scheduler() -> None:
    made = rates(linear(0.3, 10, warmup=4), 14)
    assert made == [0.3 * linear_factor(step, 4, 10) for step in range(14)]
    assert (made[0], made[4], made[10]) == (0.0, 0.3, 0.0)


def test_constant_and_steps() -> None:
    assert rates(constant(0.1, warmup=2), 4) == pytest.approx([0, 0.05, 0.1, 0.1])
    assert rates(stepwise(1.0, 2, 0.5), 6) == [1, 1, 0.5, 0.5, 0.25, 0.25]


def test_join_counts_the_steps_of_each_part_from_0() -> None:
    made = join([(linear(1.0, 4, warmup=4), 4), (cosine(1.0, 4), 4), (constant(0.25), 1)])
    assert rates(made, 10) == pytest.approx(
        [0, 0.25, 0.5, 0.75, *rates(cosine(1.0, 4), 4), 0.25, 0.25]
    )


def test_plateau_cuts_the_rate_and_ends_the_run() -> None:
    made = plateau(1.0, factor=0.5, patience=2, stop_after=1)
    told = []
    for loss in (3.0, 2.0, 2.0, 2.0, 1.9, 1.9, 1.9, 1.9, 1.9):
        told.append((made.observe(loss, False), made.rate(0)))
    assert [rate for _, rate in told] == [1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25]
    assert [reason for reason, _ in told][:-1] == [None] * 8
    assert told[-1][0] is StopReason.NO_PROGRESS


def test_plateau_of_a_metric_that_grows() -> None:
    made = plateau(1.0, factor=0.5, patience=1, threshold=0.0)
    for accuracy in (0.5, 0.6, 0.7):
        made.observe(accuracy, True)
    assert made.rate(0) == 1.0
    made.observe(0.7, True)
    assert made.rate(0) == 0.5


def test_plateau_takes_nan_for_no_progress() -> None:
    made = plateau(1.0, factor=0.5, patience=1)
    made.observe(math.nan, False)
    assert made.memory["best"] is None
    made.observe(2.0, False)
    made.observe(math.nan, False)
    assert (made.memory["best"], made.rate(0)) == (2.0, 0.25)


def test_until_ends_at_the_target() -> None:
    made = until(constant(0.1), 0.98)
    assert made.observe(0.97, True) is None
    assert made.observe(0.98, True) is StopReason.TARGET_REACHED
    assert until(constant(0.1), 0.2).observe(0.19, False) is StopReason.TARGET_REACHED


def _worked(steps: int) -> Schedule:
    made = until(join([(constant(1.0), 2), (plateau(1.0, 0.5, patience=1), 9)]), 0.0)
    for step in range(steps):
        made.rate(step)
        made.observe(5.0, False)
    return made


def test_what_it_remembers_survives_as_json() -> None:
    restored = _worked(0)
    restored.restore(json.loads(json.dumps(_worked(5).state())))
    assert restored.rate(6) == _worked(5).rate(6) == 0.25
    assert restored.state() == _worked(5).state() | {"parts": restored.state()["parts"]}
    assert _worked(0).rate(6) == 1.0


def test_the_state_of_another_schedule_is_refused() -> None:
    with pytest.raises(CheckpointError, match="schedule 'plateau', now it is 'constant'"):
        constant(0.1).restore(plateau(0.1).state())


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: linear(0.1, 5, warmup=6), "warmup: expected at most total"),
        (lambda: cosine(0.1, 5, floor=0.2), "floor: expected at most 0.1"),
        (lambda: one_cycle(0.1, 5, rise=1.0), "rise: expected a fraction"),
        (lambda: constant(-0.1), "rate must be a finite float32 number >= 0"),
        (lambda: plateau(0.1, patience=0), "patience must be >= 1"),
        (lambda: plateau(0.1, warmup=-1), "warmup must be >= 0"),
        (lambda: join([]), "at least one"),
        (lambda: stepwise(0.1, 0), "every must be >= 1"),
        (lambda: plateau(0.1, threshold=-1e-4), "threshold must be a finite float32 number >= 0"),
        (lambda: until(constant(0.1), math.nan), "target must be finite, got nan"),
    ],
)
def test_wrong_settings_are_named(make: object, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make()  # type: ignore[operator]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: plateau(0.1, threshold="3"), "threshold must be a number, got '3'"),  # type: ignore[arg-type]
        (lambda: plateau(0.1, warmup="3"), "warmup must be an integer, got '3'"),  # type: ignore[arg-type]
        (lambda: one_cycle(0.1, 5, rise="a"), "rise must be a number, got 'a'"),  # type: ignore[arg-type]
        (lambda: until(constant(0.1), "1"), "target must be a number, got '1'"),  # type: ignore[arg-type]
        (lambda: until(0.1, 1), "until: expected a Schedule, got 0.1"),  # type: ignore[arg-type]
        (lambda: join([(0.1, 3)]), "join: expected a Schedule, got 0.1"),  # type: ignore[list-item]
    ],
)
def test_settings_of_another_type_are_named(make: object, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        make()  # type: ignore[operator]


def test_a_target_below_0_is_one() -> None:
    made = until(constant(0.1), np.float32(-0.5))  # type: ignore[arg-type]
    assert made.observe(-0.4, True) is StopReason.TARGET_REACHED
