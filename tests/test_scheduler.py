"""LinearLRScheduler: the documented ramp, its place in the state, the reference's mix-up."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from support import optimizer_graphs as graphs
from support.optimizer_graphs import FakeModule

from edge_train.checkpoint.state import CheckpointState
from edge_train.errors import CheckpointError
from edge_train.optimizer import Optimizer
from edge_train.scheduler import LinearLRScheduler

SCHEDULE = "edge_train.schedule"


@pytest.fixture
def optimizer() -> Optimizer:
    return Optimizer(graphs.sgd(), FakeModule())


def _rates(optimizer: Optimizer, scheduler: LinearLRScheduler, steps: int) -> list[float]:
    rates = [optimizer.get_learning_rate()]
    for _ in range(steps):
        optimizer.step()
        scheduler.step()
        rates.append(optimizer.get_learning_rate())
    return rates


def _resumed(optimizer: Optimizer, path: Path, **options: Any) -> Optimizer:
    CheckpointState.save_checkpoint(optimizer.state, path, **options)
    return Optimizer(graphs.sgd(), FakeModule(CheckpointState.load_checkpoint(path)))


def test_u067_the_documented_ramp(optimizer: Optimizer) -> None:
    scheduler = LinearLRScheduler(optimizer, 2, 6, 1.0)
    assert _rates(optimizer, scheduler, 7) == [0, 0.5, 1, 0.75, 0.5, 0.25, 0, 0]


def test_u067_the_references_ramp_by_the_switch(optimizer: Optimizer) -> None:
    scheduler = LinearLRScheduler(optimizer, 2, 6, 1.0, reference_order=True)
    expected = [0, 1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6, 0, 0]
    assert _rates(optimizer, scheduler, 7) == pytest.approx(expected)


def test_without_warmup_it_starts_at_the_top(optimizer: Optimizer) -> None:
    scheduler = LinearLRScheduler(optimizer, 0, 4, 0.5)
    assert _rates(optimizer, scheduler, 4) == [0.5, 0.375, 0.25, 0.125, 0]


def test_warmup_may_last_to_the_end(optimizer: Optimizer) -> None:
    scheduler = LinearLRScheduler(optimizer, 2, 2, 1.0)
    assert _rates(optimizer, scheduler, 3) == [0, 0.5, 0, 0]


def test_it_starts_at_the_optimizers_present_step(optimizer: Optimizer) -> None:
    for _ in range(3):
        optimizer.step()
    LinearLRScheduler(optimizer, 2, 6, 1.0)
    assert optimizer.get_learning_rate() == 0.75


def test_a_step_of_the_schedule_alone_changes_nothing(optimizer: Optimizer) -> None:
    scheduler = LinearLRScheduler(optimizer, 2, 6, 1.0)
    optimizer.step()
    for _ in range(3):
        scheduler.step()
        assert optimizer.get_learning_rate() == 0.5


def test_a_skipped_step_does_not_advance_it(optimizer: Optimizer) -> None:
    scheduler = LinearLRScheduler(optimizer, 2, 6, 1.0)
    optimizer._module.arena.gradients[0] = math.nan
    assert _rates(optimizer, scheduler, 2) == [0, 0, 0]


def test_the_initial_rate_is_kept_in_the_group(optimizer: Optimizer) -> None:
    LinearLRScheduler(optimizer, 2, 6, 0.25)
    assert optimizer.group.initial_learning_rate == 0.25


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ((-1, 6, 1.0), ValueError, "warmup_step_count must be >= 0, got -1"),
        ((0, 0, 1.0), ValueError, "total_step_count must be >= 1, got 0"),
        ((6, 2, 1.0), ValueError, "reference_order=True"),
        ((2.0, 6, 1.0), TypeError, "warmup_step_count must be an integer"),
        ((2, True, 1.0), TypeError, "total_step_count must be an integer"),
        ((2, 6, math.nan), ValueError, "initial_lr"),
        ((2, 6, -1.0), ValueError, "initial_lr"),
        ((2, 6, "1"), TypeError, "initial_lr"),
    ],
)
def test_wrong_arguments_are_refused_and_change_nothing(
    arguments: tuple[Any, ...], error: type[Exception], text: str, optimizer: Optimizer
) -> None:
    with pytest.raises(error, match=text):
        LinearLRScheduler(optimizer, *arguments)
    assert optimizer.get_learning_rate() == 0.001
    assert optimizer.state.private == {}


@pytest.mark.parametrize("reference_order", [False, True])
@pytest.mark.parametrize("include", [True, False])
def test_a_resumed_schedule_goes_on(
    include: bool, reference_order: bool, optimizer: Optimizer, tmp_path: Path
) -> None:
    scheduler = LinearLRScheduler(optimizer, 3, 8, 0.3, reference_order=reference_order)
    _rates(optimizer, scheduler, 4)
    again = _resumed(optimizer, tmp_path / "checkpoint", include_optimizer_state=include)
    assert again.get_learning_rate() == optimizer.get_learning_rate()
    restored = LinearLRScheduler.restore(again)
    assert restored is not None
    assert again.step_count == (4 if include else 0)
    assert _rates(again, restored, 5) == _rates(optimizer, scheduler, 5)


def test_a_position_survives_several_resumes_without_the_optimizers_state(
    optimizer: Optimizer, tmp_path: Path
) -> None:
    _rates(optimizer, LinearLRScheduler(optimizer, 0, 8, 1.0), 2)
    for expected in (0.5, 0.25):
        optimizer = _resumed(optimizer, tmp_path / "checkpoint", include_optimizer_state=False)
        scheduler = LinearLRScheduler.restore(optimizer)
        assert scheduler is not None
        assert _rates(optimizer, scheduler, 2)[-1] == expected


@pytest.mark.parametrize("include", [True, False])
def test_a_reset_takes_the_stored_schedule_back_too(
    include: bool, optimizer: Optimizer, tmp_path: Path
) -> None:
    scheduler = LinearLRScheduler(optimizer, 0, 8, 1.0)
    _rates(optimizer, scheduler, 3)
    optimizer.reset_state()
    again = _resumed(optimizer, tmp_path / "checkpoint", include_optimizer_state=include)
    restored = LinearLRScheduler.restore(again)
    assert restored is not None
    scheduler.step()
    assert _rates(again, restored, 2) == _rates(optimizer, scheduler, 2) == [1.0, 0.875, 0.75]


@pytest.mark.parametrize("text", ["", "3", "[]", "{}", '{"position": "3"}', "[" * 100_000])
def test_a_reset_leaves_text_that_is_no_schedule(text: str, optimizer: Optimizer) -> None:
    optimizer.state.private[SCHEDULE] = text
    optimizer.reset_state()
    assert optimizer.state.private[SCHEDULE] == text


def test_without_a_stored_schedule_there_is_nothing_to_restore(optimizer: Optimizer) -> None:
    assert LinearLRScheduler.restore(optimizer) is None
    assert optimizer.get_learning_rate() == 0.001


@pytest.mark.parametrize(
    "change",
    [{"kind": "cosine"}, {"warmup": -1}, {"total": 1.5}, {"initial_lr": math.nan},
     {"position": "3"}, {"position": None}],
)  # fmt: skip
def test_a_stored_schedule_that_cannot_be_is_refused(
    change: dict[str, Any], optimizer: Optimizer
) -> None:
    LinearLRScheduler(optimizer, 2, 6, 1.0)
    private = optimizer.state.private
    private[SCHEDULE] = json.dumps({**json.loads(private[SCHEDULE]), **change})
    with pytest.raises(CheckpointError, match="is no schedule"):
        LinearLRScheduler.restore(optimizer)


@pytest.mark.parametrize("text", ["", "3", "[]", "{}", "{", "[" * 100_000])
def test_other_text_is_refused(text: str, optimizer: Optimizer) -> None:
    optimizer.state.private[SCHEDULE] = text
    with pytest.raises(CheckpointError, match="is no schedule"):
        LinearLRScheduler.restore(optimizer)
