"""Checkpoints go both ways between this package and the reference, value for value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.reference import Contents, Reference, ReferenceError
from support.zoo import ZOO, ZOO_MODELS

from edge_train.api import Module, Optimizer
from edge_train.checkpoint.parameter import Parameter
from edge_train.checkpoint.state import CheckpointState

load, save = CheckpointState.load_checkpoint, CheckpointState.save_checkpoint
MLP = ZOO["mlp_MSELoss"]
PROPERTIES: dict[str, Any] = {
    "epoch": 3,
    "zero": 0,
    "least": -(2**63),
    "best": 0.1,
    "none": 0.0,
    "text": "ü and \0",
    "": "empty name",
}


def _check_agreement(state: CheckpointState, contents: Contents) -> None:
    assert contents.parameters.keys() == {name for name, _ in state.parameters}
    for name, parameter in state.parameters:
        theirs = contents.parameters[name]
        if not state.is_nominal:  # the reference tells only the names of a nominal state
            assert parameter.requires_grad == contents.requires_grad[name]
            assert theirs is not None
            assert theirs.dtype == parameter.data.dtype
            np.testing.assert_array_equal(theirs, parameter.data)
    properties = {n: v for n, v in contents.properties.items() if not n.startswith("edge_train.")}
    assert dict(state.properties) == properties


@pytest.mark.parametrize("name", ZOO_MODELS)
def test_a_state_saved_here_loads_there(name: str, reference: Reference, tmp_path: Path) -> None:
    case = ZOO[name]
    for source in (case.checkpoint, case.nominal_checkpoint):
        state = load(source)
        for key, value in PROPERTIES.items():
            state.properties[key] = value
        save(state, tmp_path / "saved")
        _check_agreement(state, reference.read_checkpoint(tmp_path / "saved"))


@pytest.mark.parametrize("name", ZOO_MODELS)
def test_the_bytes_are_the_same(name: str, reference: Reference, tmp_path: Path) -> None:
    case = ZOO[name]
    training = reference.load(case)
    for key, value in PROPERTIES.items():
        training.set_property(key, value)
    for optimizer_state in (False, True):
        training.save_checkpoint(tmp_path / "theirs", include_optimizer_state=optimizer_state)
        save(load(tmp_path / "theirs"), tmp_path / "ours")
        assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
    training.drop()


def test_moments_and_step_go_both_ways(reference: Reference, tmp_path: Path) -> None:
    training = reference.load(MLP)
    for _ in range(3):
        training.step(MLP.feed)
    training.save_checkpoint(tmp_path / "theirs", include_optimizer_state=True)
    state = load(tmp_path / "theirs")
    group = state.groups["group0"]
    assert (group.step, round(group.initial_learning_rate, 6)) == (3, 0.001)
    assert group.moments.keys() == {"b1", "b2", "w1", "w2"}
    assert np.abs(group.moments["w1"]["momentum1"]).max() > 0
    _check_agreement(state, reference.read_checkpoint(tmp_path / "theirs"))
    save(state, tmp_path / "ours")
    resumed = reference.load(MLP, checkpoint=tmp_path / "ours")
    assert [resumed.step(MLP.feed) for _ in range(3)] == [training.step(MLP.feed) for _ in range(3)]


@pytest.mark.parametrize("dtype", ["f4", "u1", "i1", "u2", "i2", "i4", "i8", "?", "f8", "u4", "u8"])
def test_every_type_loads_there(dtype: str, reference: Reference, tmp_path: Path) -> None:
    arrays = [np.arange(size).astype(dtype).reshape(shape) for size, shape in SHAPES]
    state = CheckpointState(Parameter(f"p{i}", i % 2 > 0, a) for i, a in enumerate(arrays))
    save(state, tmp_path / "saved")
    _check_agreement(state, reference.read_checkpoint(tmp_path / "saved"))


SHAPES: list[tuple[int, tuple[int, ...]]] = [(1, ()), (0, (0, 3)), (7, (7,)), (6, (1, 2, 3))]


def test_a_data_file_goes_both_ways(reference: Reference, tmp_path: Path) -> None:
    arrays = [np.arange(n).astype(dtype) for n, dtype in ((3, "u1"), (5, "f8"), (90, "f4"))]
    state = CheckpointState(Parameter(f"p{i}", i != 1, a) for i, a in enumerate(arrays))
    state._has_external_data = True
    save(state, tmp_path / "ours")
    _check_agreement(state, reference.read_checkpoint(tmp_path / "ours"))


def test_a_data_file_has_the_layout_of_the_reference(reference: Reference, tmp_path: Path) -> None:
    state = load(MLP.checkpoint)
    state._has_external_data = True
    save(state, tmp_path / "ours")
    training = reference.load(MLP, checkpoint=tmp_path / "ours", with_optimizer=False)
    training.save_checkpoint(tmp_path / "theirs")
    assert (tmp_path / "theirs").read_bytes() == (tmp_path / "ours").read_bytes()
    theirs = (tmp_path / "theirs.data").read_bytes()
    assert (tmp_path / "ours.data").read_bytes()[:-16] == theirs  # ours ends with its identity
    _check_agreement(load(tmp_path / "theirs"), reference.read_checkpoint(tmp_path / "ours"))


def test_float16_is_ours_alone(reference: Reference, tmp_path: Path) -> None:
    save(CheckpointState([Parameter("h", True, np.ones(3, np.float16))]), tmp_path / "saved")
    assert load(tmp_path / "saved").parameters["h"].data.dtype == np.float16
    with pytest.raises(ReferenceError, match="nsupported data type"):
        reference.read_checkpoint(tmp_path / "saved")


def test_moments_of_8_bits_are_read_there(reference: Reference, tmp_path: Path) -> None:
    """The next step of the reference is that of float32 moments here, from the same file."""
    module = Module(MLP.training_model, load(MLP.checkpoint))
    optimizer = Optimizer(MLP.optimizer_model, module, moments="8bit")
    for _ in range(4):
        module(**MLP.feed)
        optimizer.step()
        module.lazy_reset_grad()
    save(module.state, tmp_path / "packed")
    theirs = reference.load(MLP, checkpoint=tmp_path / "packed")
    mine = Module(MLP.training_model, load(tmp_path / "packed"))
    mine(**MLP.feed)
    theirs.train_step(MLP.feed)
    for name, gradient in theirs.gradients().items():
        mine.state.parameters[name].grad[...] = gradient
    theirs.optimizer_step()
    Optimizer(MLP.optimizer_model, mine).step()
    moved = False
    for name, weight in theirs.parameters().items():
        got = mine.state.parameters[name].data
        np.testing.assert_allclose(got, weight, rtol=2e-7, atol=5e-8)
        moved = moved or not np.array_equal(weight, module.state.parameters[name].data)
    assert moved
    theirs.drop()
