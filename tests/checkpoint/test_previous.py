"""The state before the last save (U039): kept on request, offered when the last one is broken."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from support.zoo import ZOO

from edge_train.api import CheckpointState
from edge_train.checkpoint import files
from edge_train.errors import CheckpointCorrupt, CheckpointError

CASE = ZOO["mlp_CrossEntropyLoss"]


def _saved_twice(path: Path) -> CheckpointState:
    state = CheckpointState.load_checkpoint(CASE.checkpoint)
    for epoch in (1, 2):
        state.properties["epoch"] = epoch
        CheckpointState.save_checkpoint(state, path, keep_previous=True)
    return state


@pytest.mark.parametrize("linked", [True, False])
@pytest.mark.parametrize("two_files", [False, True])
def test_u039_a_truncated_file_names_the_state_before_it(
    linked: bool, two_files: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not linked:
        monkeypatch.setattr(os, "link", _refuse)
    if two_files:
        monkeypatch.setattr(files, "INLINE_LIMIT", 1)
    path = tmp_path / "state"
    state = _saved_twice(path)
    whole = path.read_bytes()
    for size in (0, len(whole) // 2, len(whole) - 16):
        path.write_bytes(whole[:size])
        with pytest.raises(CheckpointCorrupt, match=r"load that one$") as broken:
            CheckpointState.load_checkpoint(path)
        assert f"'{path}.previous'" in str(broken.value)
    before = CheckpointState.load_checkpoint(f"{path}.previous")
    assert before.properties["epoch"] == 1
    for name, parameter in before.parameters:
        np.testing.assert_array_equal(parameter.data, state.parameters[name].data)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(
        name + end for name in ("state", "state.previous") for end in ("", ".data")[: 1 + two_files]
    )


@pytest.mark.parametrize("linked", [True, False])
def test_a_symbolic_link_keeps_the_state_before(
    linked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not linked:
        monkeypatch.setattr(os, "link", _refuse)
    path, real = tmp_path / "state", tmp_path / "first" / "state"
    real.parent.mkdir()
    path.symlink_to(Path("first", "state"))
    state = _saved_twice(path)
    for epoch in (3, 4):
        before = CheckpointState.load_checkpoint(f"{path}.previous")
        assert before.properties["epoch"] == epoch - 2
        assert CheckpointState.load_checkpoint(real).properties["epoch"] == epoch - 1
        state.properties["epoch"] = epoch
        CheckpointState.save_checkpoint(state, path, keep_previous=True)
    assert path.is_symlink()
    assert not Path(f"{path}.previous").is_symlink()
    assert sorted(os.listdir(tmp_path)) == ["first", "state", "state.previous"]
    assert os.listdir(real.parent) == ["state"]


def test_a_save_that_fails_after_keeping_leaves_no_third_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state"
    state = _saved_twice(path)
    with monkeypatch.context() as patch:
        patch.setattr(files, "write", _refuse)
        for _ in range(2):
            with pytest.raises(OSError, match="not permitted"):
                CheckpointState.save_checkpoint(state, path, keep_previous=True)
    assert sorted(os.listdir(tmp_path)) == ["state", "state.previous"]


def test_a_pipe_in_the_place_of_the_kept_state_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state"
    os.mkfifo(f"{path}.previous")
    with pytest.raises(CheckpointError, match="is a named pipe"):
        _saved_twice(path)
    assert Path(f"{path}.previous").is_fifo()
    assert CheckpointState.load_checkpoint(path).properties["epoch"] == 1


def _refuse(*_: object) -> None:
    raise OSError(1, "Operation not permitted")


def test_nothing_is_kept_unless_asked_for(tmp_path: Path) -> None:
    state = CheckpointState.load_checkpoint(CASE.checkpoint)
    for _ in range(2):
        CheckpointState.save_checkpoint(state, tmp_path / "state")
    assert [p.name for p in tmp_path.iterdir()] == ["state"]


def test_a_broken_file_without_a_previous_one_offers_nothing(tmp_path: Path) -> None:
    (tmp_path / "state").write_bytes(CASE.checkpoint.read_bytes()[:100])
    with pytest.raises(CheckpointCorrupt) as broken:
        CheckpointState.load_checkpoint(tmp_path / "state")
    assert "previous" not in str(broken.value)


def test_a_copy_that_cannot_be_made_leaves_the_old_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state"
    state = _saved_twice(path)
    whole = path.read_bytes()
    state.properties["epoch"] = 3
    monkeypatch.setattr(os, "replace", _refuse)
    with pytest.raises(CheckpointError, match="cannot be kept"):
        CheckpointState.save_checkpoint(state, path, keep_previous=True)
    assert path.read_bytes() == whole
