"""Saving where a pipe has the name: neither opened, which would wait for ever, nor replaced."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.zoo import ZOO

from edge_train import atomic
from edge_train.api import CheckpointState
from edge_train.errors import CheckpointError

CASE = ZOO["mlp_CrossEntropyLoss"]


def _state(epoch: int, *, external: bool) -> CheckpointState:
    state = CheckpointState.load_checkpoint(CASE.checkpoint)
    state.properties["epoch"] = epoch
    state._has_external_data = external
    return state


@pytest.mark.parametrize(("external", "name"), [(False, ""), (True, ""), (True, ".data")])
def test_a_pipe_is_refused_before_anything_is_written(
    external: bool, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = tmp_path / f"checkpoint{name}"
    os.mkfifo(pipe)
    made: list[str] = []
    monkeypatch.setattr(atomic, "_create", made.append)
    with pytest.raises(CheckpointError, match="is a named pipe, expected a regular file"):
        CheckpointState.save_checkpoint(_state(1, external=external), tmp_path / "checkpoint")
    assert not made
    assert pipe.is_fifo()
    assert os.listdir(tmp_path) == [pipe.name]


def test_a_pipe_under_the_name_of_the_next_data_file_is_named(tmp_path: Path) -> None:
    path, pipe = tmp_path / "checkpoint", tmp_path / "checkpoint.data.next"
    CheckpointState.save_checkpoint(_state(1, external=True), path)
    os.mkfifo(pipe)
    with pytest.raises(CheckpointError, match=rf"'{pipe}' is a named pipe, expected a regular"):
        CheckpointState.save_checkpoint(_state(2, external=True), path)
    assert pipe.is_fifo()
    assert CheckpointState.load_checkpoint(path).properties["epoch"] == 1
