"""CheckpointState: loading from everything, saving, parameters, groups."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.zoo import SEIZURE, ZOO

from edge_train.checkpoint.parameter import Parameter
from edge_train.checkpoint.state import CheckpointState, OptimizerGroup
from edge_train.errors import CheckpointError, NominalStateError

MLP = ZOO["mlp_MSELoss"]
ALL = [*ZOO.values(), SEIZURE]
load, save = CheckpointState.load_checkpoint, CheckpointState.save_checkpoint


def _check_same(a: CheckpointState, b: CheckpointState) -> None:
    assert a.is_nominal == b.is_nominal
    assert [n for n, _ in a.parameters] == [n for n, _ in b.parameters]
    for name, parameter in a.parameters:
        other = b.parameters[name]
        assert parameter.requires_grad == other.requires_grad
        if not a.is_nominal:
            assert parameter.data.dtype == other.data.dtype
            np.testing.assert_array_equal(parameter.data, other.data)
    assert a.groups.keys() == b.groups.keys()
    for name, group in a.groups.items():
        twin = b.groups[name]
        assert (group.step, group.initial_learning_rate) == (twin.step, twin.initial_learning_rate)
        np.testing.assert_equal(group.moments, twin.moments)
    assert list(a.properties) == list(b.properties)
    assert a.private == b.private


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
def test_every_golden_is_loaded_and_saved_value_for_value(case: Any, tmp_path: Path) -> None:
    for source in (case.checkpoint, case.nominal_checkpoint):
        if source.exists():
            state = load(source)
            save(state, tmp_path / "saved")
            _check_same(state, load(tmp_path / "saved"))


def test_a_changed_parameter_is_another_state(tmp_path: Path) -> None:
    state = load(MLP.checkpoint)
    save(state, tmp_path / "saved")
    state.parameters["b1"].data[0] += np.float32(1e-7)
    with pytest.raises(AssertionError):
        _check_same(state, load(tmp_path / "saved"))


def test_everything_readable_gives_the_same_state() -> None:
    data = MLP.checkpoint.read_bytes()
    expected = load(str(MLP.checkpoint))
    behind = io.BytesIO(b"before" + data)
    behind.seek(6)
    pipe = io.BytesIO(data)
    pipe.seekable = lambda: False  # type: ignore[method-assign]
    sources = [MLP.checkpoint, data, bytearray(data), memoryview(data), behind, pipe]
    for source in sources:
        _check_same(expected, load(source))
    with open(MLP.checkpoint, "rb") as file:
        _check_same(expected, load(file))


def test_what_is_not_readable_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="missing"):
        load(tmp_path / "missing")
    with pytest.raises(CheckpointError, match=r"folder format of older releases \(before 1.16\)"):
        load(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CheckpointError, match="a device or a pipe"):
        load(tmp_path / "pipe")
    for wrong in (None, 3, ["path"]):
        with pytest.raises(TypeError, match="a path, bytes or a binary file object"):
            load(wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="mode 'rb'"):
        load(io.StringIO("text"))  # type: ignore[arg-type]


def test_saving_asks_for_a_state_and_a_path(tmp_path: Path) -> None:
    state = load(MLP.checkpoint)
    with pytest.raises(TypeError, match="CheckpointState, got dict"):
        save({}, tmp_path / "x")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="path, got BytesIO"):
        save(state, io.BytesIO())  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match="is a folder"):
        save(state, tmp_path)


def test_parameters_behave_as_in_the_reference() -> None:
    parameters = load(MLP.checkpoint).parameters
    assert len(parameters) == 4
    assert "w1" in parameters
    assert "nope" not in parameters
    assert [name for name, _ in parameters] == ["b1", "b2", "w1", "w2"]
    assert parameters["w1"] is parameters["w1"]
    assert repr(parameters) == "Parameters(['b1', 'b2', 'w1', 'w2'])"
    assert repr(parameters["w1"]) == "Parameter(name=w1, requires_grad=True)"
    with pytest.raises(KeyError, match=r"parameter 'w3' not found; did you mean"):
        parameters["w3"]
    with pytest.raises(KeyError, match="there are 4"):
        parameters["zzzzzz"] = np.zeros(1)


def test_parameter_data_is_a_writable_view_of_one_object() -> None:
    """Case U076: weights set by hand are kept; a wrong shape or type is refused."""
    parameters = load(MLP.checkpoint).parameters
    view = parameters["b1"].data
    parameters["b1"] = np.full(5, 2, np.float32)
    assert view.tolist() == [2] * 5
    view[0] = 3
    assert parameters["b1"].data[0] == 3
    parameters["b1"].data = np.zeros(5, np.float32)
    assert view.tolist() == [0] * 5
    with pytest.raises(ValueError, match=r"parameter 'b1' has shape \[5\], got \[1, 5\]"):
        parameters["b1"] = np.zeros((1, 5), np.float32)
    with pytest.raises(ValueError, match=r"got \[\]"):
        parameters["b1"].data = np.array(0, np.float32)
    with pytest.raises(TypeError, match="has dtype float32, got float64; convert"):
        parameters["b1"] = np.zeros(5)
    with pytest.raises(TypeError, match="takes a numpy array of float32"):
        parameters["b1"] = [0.0] * 5  # type: ignore[assignment]
    assert view.tolist() == [0] * 5
    with pytest.raises(AttributeError):
        parameters["b1"].requires_grad = False  # type: ignore[misc]


def test_attach_moves_a_parameter(tmp_path: Path) -> None:
    state = load(MLP.checkpoint)
    parameter = state.parameters["b1"]
    earlier = parameter.data
    assert parameter.grad is None
    storage, gradient = np.ones(5, np.float32), np.zeros(5, np.float32)
    parameter.attach(storage, gradient)
    earlier[:] = 9
    assert parameter.data.tolist() == [1] * 5
    assert np.shares_memory(parameter.grad, gradient)
    storage[2] = 4
    save(state, tmp_path / "saved")
    assert load(tmp_path / "saved").parameters["b1"].data.tolist() == [1, 1, 4, 1, 1]


def test_loaded_arrays_are_aligned_and_independent() -> None:
    data = bytearray(b"x" + MLP.checkpoint.read_bytes())
    state = load(memoryview(data)[1:])
    values = [parameter.data.copy() for _, parameter in state.parameters]
    data[:] = bytes(len(data))
    for (_, parameter), before in zip(state.parameters, values, strict=True):
        assert parameter.data.flags.aligned
        assert parameter.data.flags.writeable
        np.testing.assert_array_equal(parameter.data, before)


def test_a_nominal_state_says_fill_first(tmp_path: Path) -> None:
    state = load(MLP.nominal_checkpoint)
    assert state.is_nominal
    assert len(state.parameters) == 4
    for use in (
        lambda: state.parameters["w1"].data,
        lambda: state.parameters.__setitem__("w1", np.zeros((5, 4), np.float32)),
    ):
        with pytest.raises(NominalStateError, match=r"nominal.*copy_buffer_to_parameters first"):
            use()
    save(state, tmp_path / "saved")
    _check_same(state, load(tmp_path / "saved"))
    for _, parameter in state.parameters:
        parameter.attach(np.zeros(3, np.float32))
    state.mark_filled()
    save(state, tmp_path / "saved")
    assert not load(tmp_path / "saved").is_nominal


def test_optimizer_state_is_stored_by_default(tmp_path: Path) -> None:
    """Case U036: a resumed run continues with its moments."""
    state = load(MLP.checkpoint)
    moments = {"w1": {"momentum0": np.full((5, 4), 0.5, np.float32)}}
    state.groups["group0"] = OptimizerGroup("group0", 7, 0.25, moments)
    save(state, tmp_path / "with")
    _check_same(state, load(tmp_path / "with"))
    moments["w1"]["momentum0"][0] = 1  # live arrays: the next save has the present values
    save(state, tmp_path / "with")
    assert load(tmp_path / "with").groups["group0"].moments["w1"]["momentum0"][0, 0] == 1
    save(state, tmp_path / "without", include_optimizer_state=False)
    assert load(tmp_path / "without").groups == {}


def test_private_strings_are_kept_and_hidden(tmp_path: Path) -> None:
    state = load(MLP.checkpoint)
    state.private["edge_train.learning_rate"] = "0.03"
    state.properties["epoch"] = 3
    save(state, tmp_path / "saved")
    again = load(tmp_path / "saved")
    assert again.private == {"edge_train.learning_rate": "0.03"}
    assert list(again.properties) == [("epoch", 3)]
    assert b"edge_train.learning_rate" in (tmp_path / "saved").read_bytes()


def test_a_name_in_both_lists_is_trainable() -> None:
    state = CheckpointState([Parameter("w", True, np.zeros(1)), Parameter("w", False, np.ones(1))])
    assert [(n, p.requires_grad) for n, p in state.parameters] == [("w", True)]
    assert repr(state) == "CheckpointState(1 parameters, 0 optimizer groups, 0 properties)"
