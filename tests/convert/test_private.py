"""Own properties after a conversion: the position of a run, the choice, the schedule."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.states import rich, save, trained
from support.training import session_of
from support.zoo import ZOO

from edge_train.api import CheckpointState, LinearLRScheduler, Module, Optimizer
from edge_train.convert import npz, private, safetensors
from edge_train.convert.average import average
from edge_train.convert.combine import merge, transfer
from edge_train.convert.flat import from_flat
from edge_train.convert.rewrite import rename, rewrite

MLP = ZOO["mlp_MSELoss"]


def _of_a_run(path: Path) -> Path:
    """A checkpoint as a Trainer leaves it."""
    properties = {**dict.fromkeys(private.OF_A_RUN, "text"), "edge_train.learning_rate": "0.5"}
    return save(replace(rich(), properties=properties), path)


def _private(path: Path) -> dict[str, str]:
    return CheckpointState.load_checkpoint(path).private


def test_a_run_goes_on_from_the_very_state_alone(tmp_path: Path) -> None:
    """Another form keeps the position, other weights or names do not."""
    path, out = _of_a_run(tmp_path / "c"), tmp_path / "out"
    same = {
        "copy": lambda: rewrite(path, out),
        "data file": lambda: rewrite(path, out, data_file=True),
        "safetensors": lambda: (
            safetensors.to_safetensors(path, tmp_path / "x"),
            safetensors.from_safetensors(tmp_path / "x", out),
        ),
        "npz": lambda: (npz.to_npz(path, tmp_path / "x"), npz.from_npz(tmp_path / "x", out)),
    }
    for name, convert in same.items():
        convert()
        assert _private(out).keys() == _private(path).keys(), name
    other = {
        "strip": lambda: rewrite(path, out, optimizer=False),
        "rename": lambda: rename(path, out, {"w": "v"}),
        "merge": lambda: merge([path, path], out, prefer="first", optimizer=False),
        "transfer": lambda: transfer(path, path, out),
        "average": lambda: average([path], out, statistics="keep"),
    }
    finite = replace(rich(), trainable=rich().trainable[1:])
    for name, convert in other.items():
        if name == "average":  # which refuses the NaN of ``rich``
            save(replace(finite, properties={**dict.fromkeys(private.OF_A_RUN, "t")}), path)
        convert()
        assert not _private(out).keys() & set(private.OF_A_RUN), name


def _trained_in_part(path: Path, names: list[str]) -> Path:
    state = CheckpointState.load_checkpoint(MLP.checkpoint)
    Module(MLP.training_model, state, trainable=names)
    CheckpointState.save_checkpoint(state, path)
    return path


def test_the_choice_of_trained_parameters_is_renamed_too(tmp_path: Path) -> None:
    path = _trained_in_part(tmp_path / "c", ["w2", "b2"])
    rename(path, tmp_path / "out", {"w*": "v*"})
    state = CheckpointState.load_checkpoint(tmp_path / "out")
    assert set(state.chosen or ()) == {"v2", "b2"}
    rename(path, tmp_path / "prefixed", {"*": "a.*"})
    whole = tmp_path / "whole"
    CheckpointState.save_checkpoint(CheckpointState.load_checkpoint(MLP.checkpoint), whole)
    merge([tmp_path / "prefixed", whole], tmp_path / "merged")
    chosen = CheckpointState.load_checkpoint(tmp_path / "merged").chosen
    assert set(chosen or ()) == {"a.w2", "a.b2", "w1", "b1", "w2", "b2"}
    merge([whole], tmp_path / "merged")
    assert CheckpointState.load_checkpoint(tmp_path / "merged").chosen is None
    transfer(whole, path, tmp_path / "moved")
    chosen = CheckpointState.load_checkpoint(tmp_path / "moved").chosen
    assert set(chosen or ()) == {"w2", "b2"}


def test_a_reset_takes_the_schedule_back(tmp_path: Path) -> None:
    """As copy_buffer_to_parameters(reset_optimizer=True): the next steps are the same bits."""
    module, optimizer = session_of(MLP)
    schedule = LinearLRScheduler(optimizer, 2, 20, 0.1)
    for _ in range(5):
        module.lazy_reset_grad()
        module(**MLP.feed)
        optimizer.step()
        schedule.step()
    CheckpointState.save_checkpoint(module.state, tmp_path / "c")
    buffer = np.linspace(-1, 1, 43, dtype="<f4")
    from_flat(
        tmp_path / "c",
        buffer.tobytes(),
        tmp_path / "reset",
        MLP.training_model,
        reset_optimizer=True,
    )
    module.copy_buffer_to_parameters(buffer, reset_optimizer=True)
    CheckpointState.save_checkpoint(module.state, tmp_path / "expected")
    assert _private(tmp_path / "reset") == _private(tmp_path / "expected")
    position = json.loads(_private(tmp_path / "reset")["edge_train.schedule"])["position"]
    assert position == json.loads(_private(tmp_path / "c")["edge_train.schedule"])["position"] - 5
    state = CheckpointState.load_checkpoint(tmp_path / "reset")
    other = Module(MLP.training_model, state, MLP.eval_model)
    theirs = Optimizer(MLP.optimizer_model, other)
    for one, steps in ((module, optimizer), (other, theirs)):
        one.lazy_reset_grad()
        one(**MLP.feed)
        assert steps.step()
    for name, parameter in module.state.parameters:
        np.testing.assert_array_equal(other.state.parameters[name].data, parameter.data)


@pytest.mark.parametrize("text", ["[1]", "{", "5", "[" * 100_000])
def test_a_damaged_choice_is_left_alone(text: str, tmp_path: Path) -> None:
    checkpoint = replace(rich(), properties={"edge_train.trainable": text})
    assert private.chosen(checkpoint) is None
    assert private.with_choice_renamed(checkpoint, str.upper) is checkpoint


def test_without_a_group_there_is_nothing_to_rewind(tmp_path: Path) -> None:
    from_flat(
        MLP.checkpoint, bytes(172), tmp_path / "out", MLP.training_model, reset_optimizer=True
    )
    assert CheckpointState.load_checkpoint(tmp_path / "out").groups == {}
    path = trained(MLP, tmp_path / "c")
    from_flat(path, bytes(172), tmp_path / "out", MLP.training_model, reset_optimizer=True)
    assert CheckpointState.load_checkpoint(tmp_path / "out").groups["group0"].step == 0
