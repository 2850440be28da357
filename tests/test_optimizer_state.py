"""The optimizer's part of a CheckpointState: made, restored, resumed, refused, reset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import optimizer_graphs as graphs
from support.optimizer_graphs import FakeModule

from edge_train.checkpoint.state import CheckpointState, OptimizerGroup
from edge_train.errors import CheckpointError, NominalStateError
from edge_train.optimizer import Optimizer, reset_group

ADAMW = graphs.adamw(adam_mode=1, epsilon=1e-6, weight_decay=0.0)


@pytest.fixture
def module() -> FakeModule:
    module = FakeModule()
    module.arena.weights[...] = np.linspace(-1, 1, module.arena.size)
    module.fill(0)
    return module


def _train(optimizer: Optimizer, module: FakeModule, first: int, steps: int) -> None:
    for seed in range(first, first + steps):
        module.fill(seed)
        optimizer.step()


def _resumed(module: FakeModule, path: Path, **options: Any) -> FakeModule:
    CheckpointState.save_checkpoint(module.state, path, **options)
    again = FakeModule(CheckpointState.load_checkpoint(path))
    again.arena.weights[...] = module.arena.weights
    return again


def test_a_fresh_state_gets_a_group_of_zeros(module: FakeModule) -> None:
    optimizer = Optimizer(ADAMW, module)
    group = module.state.groups["group0"]
    assert (group.step, group.initial_learning_rate) == (0, 0.001)
    assert optimizer.get_learning_rate() == 0.001
    assert list(group.moments) == ["w", "b"]
    for name, own in group.moments.items():
        assert list(own) == ["momentum0", "momentum1"]
        for moment in own.values():
            assert moment.shape == module.arena.shape(name)
            assert not moment.any()


def test_sgd_keeps_one_moment_of_zeros(module: FakeModule) -> None:
    Optimizer(graphs.sgd(), module).step()
    assert [list(own) for own in module.state.groups["group0"].moments.values()] == [
        ["momentum0"], ["momentum0"]
    ]  # fmt: skip
    assert not module.arena.moment(0).any()


def test_u036_a_resumed_run_equals_an_uninterrupted_one(module: FakeModule, tmp_path: Path) -> None:
    optimizer = Optimizer(ADAMW, module)
    _train(optimizer, module, 0, 4)
    again = _resumed(module, tmp_path / "checkpoint")
    bare = _resumed(module, tmp_path / "bare", include_optimizer_state=False)
    _train(optimizer, module, 4, 3)
    for copy in (again, bare):
        _train(Optimizer(ADAMW, copy), copy, 4, 3)
    np.testing.assert_array_equal(again.arena.weights, module.arena.weights)
    np.testing.assert_array_equal(again.arena.moment(1), module.arena.moment(1))
    assert again.state.groups["group0"].step == 7
    assert not np.array_equal(bare.arena.weights, module.arena.weights)


def test_u037_the_learning_rate_comes_back(module: FakeModule, tmp_path: Path) -> None:
    Optimizer(ADAMW, module).set_learning_rate(0.03)
    again = _resumed(module, tmp_path / "checkpoint", include_optimizer_state=False)
    assert Optimizer(ADAMW, again).get_learning_rate() == 0.03


@pytest.mark.parametrize("text", ["fast", "nan", "-1", "1e39", ""])
def test_a_stored_rate_that_cannot_be_is_refused(text: str, module: FakeModule) -> None:
    module.state.private["edge_train.learning_rate"] = text
    with pytest.raises(CheckpointError, match=r"edge_train\.learning_rate"):
        Optimizer(ADAMW, module)


def test_a_group_without_moments_keeps_its_counter_and_rate(module: FakeModule) -> None:
    module.arena.moment(0).fill(9)  # of an optimizer before
    module.state.groups["group0"] = OptimizerGroup("group0", 5, 0.25, {})
    optimizer = Optimizer(ADAMW, module)
    assert (optimizer.step_count, optimizer.group.initial_learning_rate) == (5, 0.25)
    assert not module.arena.moment(0).any()


def _group(**changes: dict[str, np.ndarray] | None) -> OptimizerGroup:
    moments = {
        name: {f"momentum{i}": np.full(shape, i + 1.5, np.float32) for i in range(2)}
        for name, shape in (("w", (2, 3)), ("b", (3,)))
    }
    for name, own in changes.items():
        if own is None:
            del moments[name]
        else:
            moments[name] = {**moments.get(name, {}), **own}
    return OptimizerGroup("group0", 3, 0.1, moments)


def test_moments_are_restored_as_views_of_the_arena(module: FakeModule) -> None:
    module.state.groups["group0"] = group = _group()
    for own in group.moments.values():
        for moment in own.values():
            moment.flags.writeable = False  # as a mapped file has them
    Optimizer(ADAMW, module)
    assert set(module.arena.moment(0)) == {1.5}
    assert set(module.arena.moment(1)) == {2.5}
    module.arena.moment(1)[-1] = 7
    assert group.moments["b"]["momentum1"][-1] == 7


def _without_second() -> OptimizerGroup:
    group = _group()
    del group.moments["w"]["momentum1"]
    return group


_ONES = np.ones
MISFITS = {
    "momentum1 missing": (_without_second(), ["'w' has no momentum1"]),
    "parameter missing": (_group(b=None), ["lacks the trainable parameter 'b'"]),
    "shape": (
        _group(w={"momentum0": _ONES((3, 2), "f")}),
        ["momentum0 of 'w' is float32 (3, 2), expected float32 (2, 3)"],
    ),
    "dtype": (_group(w={"momentum0": _ONES((2, 3))}), ["momentum0 of 'w' is float64 (2, 3)"]),
    "several": (
        _group(b=None, w={"momentum1": _ONES(6, "f")}),
        ["'b'", "momentum1 of 'w'"],
    ),
    "counter": (OptimizerGroup("group0", -1, 0.1, {}), ["step counter is -1"]),
}


@pytest.mark.parametrize(("group", "texts"), MISFITS.values(), ids=MISFITS.keys())
def test_a_state_that_does_not_fit_is_refused_in_full(
    group: OptimizerGroup, texts: list[str], module: FakeModule
) -> None:
    module.state.groups["group0"] = group
    with pytest.raises(CheckpointError) as refused:
        Optimizer(ADAMW, module)
    for text in texts:
        assert text in str(refused.value)
    assert not module.arena.has_moment(0)


def test_what_others_left_behind_is_kept(module: FakeModule) -> None:
    """Moments of another optimizer or of other parameters are no obstacle, as in the reference."""
    group = _group(x={}, b={"momentum2": _ONES(3, "f")})
    module.state.groups["group0"] = group
    Optimizer(ADAMW, module).step()
    assert "x" in group.moments
    np.testing.assert_array_equal(group.moments["b"]["momentum2"], _ONES(3, "f"))


def test_sgd_goes_on_from_the_state_of_adamw(module: FakeModule) -> None:
    module.state.groups["group0"] = group = _group()
    assert Optimizer(graphs.sgd(), module).step()
    assert group.step == 4


def test_adamw_refuses_the_state_of_sgd(module: FakeModule) -> None:
    Optimizer(graphs.sgd(), module)
    with pytest.raises(CheckpointError, match="'w' has no momentum1"):
        Optimizer(ADAMW, module)


def test_other_groups_stay(module: FakeModule) -> None:
    other = OptimizerGroup("group1", 2, 0.5, {})
    module.state.groups["group1"] = other
    Optimizer(ADAMW, module).step()
    assert module.state.groups["group1"] is other
    assert other.step == 2


def test_two_modules_and_optimizers_on_one_state_share_everything(module: FakeModule) -> None:
    twin = FakeModule(module.state, module.arena)
    alone = FakeModule()
    alone.arena.weights[...] = module.arena.weights
    first, second, single = (Optimizer(ADAMW, each) for each in (module, twin, alone))
    for seed, optimizer in enumerate((first, second, first, second)):
        module.fill(seed)
        optimizer.step()
    _train(single, alone, 0, 4)
    assert first.step_count == second.step_count == 4
    np.testing.assert_array_equal(module.arena.weights, alone.arena.weights)


# ---- reset --------------------------------------------------------------------------------------


def test_u054_moments_stay_when_weights_are_put_in_and_go_when_asked(module: FakeModule) -> None:
    optimizer = Optimizer(ADAMW, module)
    optimizer.set_learning_rate(0.03)
    _train(optimizer, module, 0, 3)
    average = np.linspace(1, 2, module.arena.size, dtype=np.float32)

    kept = module.arena.moment(0).copy()
    module.arena.weights[...] = average
    assert kept.any()
    np.testing.assert_array_equal(module.arena.moment(0), kept)

    reset_group(module.state)
    _train(optimizer, module, 3, 1)
    fresh = FakeModule()
    fresh.arena.weights[...] = average
    another = Optimizer(ADAMW, fresh)
    another.set_learning_rate(0.03)
    _train(another, fresh, 3, 1)
    np.testing.assert_array_equal(module.arena.weights, fresh.arena.weights)
    assert (optimizer.step_count, optimizer.get_learning_rate()) == (1, 0.03)


def test_a_reset_before_the_optimizer_exists(module: FakeModule) -> None:
    reset_group(module.state)
    assert module.state.groups == {}
    module.state.groups["group0"] = group = _group()
    group.moments["w"]["momentum0"].flags.writeable = False
    reset_group(module.state)
    assert (group.step, group.initial_learning_rate) == (0, 0.1)
    Optimizer(ADAMW, module).reset_state()
    assert not module.arena.moment(0).any()


def test_groups_cleared_by_the_user_start_anew(module: FakeModule) -> None:
    optimizer = Optimizer(ADAMW, module)
    _train(optimizer, module, 0, 2)
    module.state.groups.clear()
    _train(optimizer, module, 2, 1)
    assert optimizer.step_count == 1
    np.testing.assert_allclose(module.arena.moment(0), 0.1 * module.arena.gradients, rtol=1e-5)


class NominalModule(FakeModule):
    def __init__(self) -> None:
        super().__init__(CheckpointState(is_nominal=True))


def test_a_nominal_state_takes_an_optimizer_and_steps_once_filled() -> None:
    module = NominalModule()
    module.state.groups["group0"] = _group()
    optimizer = Optimizer(ADAMW, module)
    assert not module.arena.has_moment(0)
    with pytest.raises(NominalStateError, match="copy_buffer_to_parameters"):
        optimizer.step()
    module.state.mark_filled()
    module.fill(0)
    assert optimizer.step()
    assert optimizer.step_count == 4
