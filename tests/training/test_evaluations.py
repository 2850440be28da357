"""Evaluations that something comes in between: made up later, as if nothing had come."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.digits import ARTIFACTS, digits, weights

from edge_train.governor import Governor, Limits
from edge_train.schedules import plateau
from edge_train.sensors import Readings
from edge_train.trainer import StopReason, Trainer
from edge_train.training.run_folder import RunFolder

SLOW = pytest.mark.slow


class _Drawing:
    """64 rows that draw from the random numbers a run keeps; ``at_row(row)`` hears of each."""

    def __init__(self, first: int, at_row: Callable[[int], None] = lambda row: None) -> None:
        self.first, self.at_row = first, at_row

    def __len__(self) -> int:
        return 64

    def __getitem__(self, row: int) -> tuple[np.ndarray, np.ndarray]:
        self.at_row(row)
        x, labels = digits()[1].x, digits()[1].labels
        return x[self.first + row] * np.float32(random.random()), labels[self.first + row]


def _trainer(at_row: Callable[[int], None] = lambda row: None, **options: Any) -> Trainer:
    """2 steps an epoch; a rate that depends on each evaluation."""
    return Trainer.from_artifacts(
        ARTIFACTS,
        _Drawing(64),
        evaluation=_Drawing(0, at_row),
        schedule=plateau(0.01, factor=0.5, patience=1, threshold=0.9),
        **options,
    )


class _Mine(Exception):
    pass


class _Between:
    """Does ``what`` once, in the midst of the evaluation, or in the callback, of step ``at``."""

    def __init__(self, at: int, what: Callable[[], None], place: str = "row") -> None:
        self.at, self.what, self.place, self.step = at, what, place, 0

    def row(self, row: int) -> None:
        if self.place == "row" and row == 40 and self.step == self.at:
            self.at = 0
            self.what()

    def callback(self, record: Any) -> None:
        self.step = record.step
        if self.place == "callback" and self.step == self.at:
            self.at = 0
            self.what()


def _raise() -> None:
    raise _Mine("between")


def _whole(options: dict[str, Any]) -> tuple[Trainer, Any]:
    random.seed(7)
    whole = _trainer(**options)
    return whole, whole.run()


def _check_same(parts: Trainer, end: Any, options: dict[str, Any]) -> None:
    whole, expected = _whole(options)
    assert (end.steps, end.metrics, end.best) == (
        expected.steps,
        expected.metrics,
        expected.best,
    )
    assert end.reason is StopReason.COMPLETED
    assert np.array_equal(weights(whole), weights(parts))


@pytest.mark.parametrize(
    ("every", "at", "place"),
    [
        (3, 6, "callback"),
        (None, 4, "row"),
        *[pytest.param(*case, "row", marks=SLOW) for case in ((3, 6), (3, 9), (None, 10))],
    ],
)
def test_an_exception_at_an_evaluation_leaves_no_trace(
    tmp_path: Path, every: int | None, at: int, place: str
) -> None:
    options = {"evaluate_every": every, "steps": 10}
    between = _Between(at, _raise, place)
    random.seed(7)
    with pytest.raises(_Mine):
        _trainer(between.row, folder=tmp_path, callbacks=[between.callback], **options).run()
    made = _trainer(folder=tmp_path, **options)
    result = made.run()
    assert result.resumed_from == at
    _check_same(made, result, options)


@pytest.mark.parametrize(
    ("every", "at"),
    [(3, 6), *[pytest.param(*case, marks=SLOW) for case in ((None, 4), (3, 10), (None, 10))]],
)
def test_a_stop_ends_an_evaluation_and_leaves_no_trace(
    tmp_path: Path, every: int | None, at: int
) -> None:
    options = {"evaluate_every": every, "steps": 10}
    between = _Between(at, lambda: made.stop())
    rows: list[int] = []

    def row(number: int) -> None:
        rows.append(number)
        between.row(number)

    random.seed(7)
    made = _trainer(row, folder=tmp_path, batch_size=32, callbacks=[between.callback], **options)
    first = made.run()
    assert (first.reason, first.steps) == (StopReason.REQUESTED, at)
    assert rows[-1] == 63  # of the second of two batches, which is not judged any more
    assert first.best is not None
    assert first.best.step < at
    made = _trainer(folder=tmp_path, **options)
    _check_same(made, made.run(), options)


class _Hot:
    """A thermometer."""

    missing: dict[str, str] = {}  # noqa: RUF012

    def __init__(self) -> None:
        self.temperature = 40.0

    def read(self, names: Any, **options: Any) -> Readings:
        return Readings(temperature=self.temperature)


def test_heat_pauses_an_evaluation(tmp_path: Path) -> None:
    sensors: Any = _Hot()

    def row(number: int) -> None:
        sensors.temperature = 90.0 if number == 40 else sensors.temperature

    limits = Limits(max_temperature=80, max_pause=0.05, interval=1e-6)
    governor = Governor(limits, sensors=sensors)
    made = _trainer(row, folder=tmp_path, evaluate_every=2, steps=4, governor=governor)
    result = made.run()
    assert (result.reason, result.steps, result.metrics) == (StopReason.HEAT, 2, {})


def test_a_state_that_is_due_is_saved_before_the_evaluation(tmp_path: Path) -> None:
    seen: list[str] = []

    def row(number: int) -> None:
        seen.extend(path.name for path in RunFolder(tmp_path).states()[:1])

    _trainer(row, folder=tmp_path, save_every=0, evaluate_every=2, steps=2).run()
    assert set(seen) == {"checkpoint-000000002"}


def test_a_time_budget_shorter_than_an_evaluation_gets_past_it(tmp_path: Path) -> None:
    now = [0.0]

    def row(number: int) -> None:
        now[0] += 1.0

    found = []
    for _ in range(3):
        governor = Governor(Limits(time_budget=20), clock=lambda: now[0])
        made = _trainer(row, folder=tmp_path, evaluate_every=2, steps=4, governor=governor)
        result = made.run()
        found.append((result.reason, result.steps, bool(result.metrics)))
    assert found == [
        (StopReason.TIME_BUDGET, 2, False),
        (StopReason.TIME_BUDGET, 3, True),
        (StopReason.TIME_BUDGET, 4, True),
    ]
