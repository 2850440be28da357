"""Artifacts and checkpoints of the releases 1.15 (folders) and 1.16 (version 1, as 1.17)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.zoo import GOLDEN

from edge_train.checkpoint.state import CheckpointState
from edge_train.module import Module
from edge_train.optimizer import Optimizer

RELEASES = GOLDEN / "releases"
load, save = CheckpointState.load_checkpoint, CheckpointState.save_checkpoint


def _session(folder: Path, state: CheckpointState) -> tuple[Module, Optimizer]:
    module = Module(folder / "training_model.onnx", state, folder / "eval_model.onnx")
    return module, Optimizer(folder / "optimizer_model.onnx", module)


@pytest.mark.parametrize("release", ["1.15.1", "1.16.3"])
def test_artifacts_of_older_releases_train_as_they_did(release: str) -> None:
    folder = RELEASES / release
    with np.load(folder / "run.npz") as run:
        x, target, losses = (run[name] for name in ("x", "target", "losses"))
    state = load(folder / "checkpoint")
    module, optimizer = _session(folder, state)
    module.train()
    got = []
    for _ in losses:
        got.append(np.asarray(module(x, target)).item())
        optimizer.step()
        module.lazy_reset_grad()
    np.testing.assert_allclose(got, losses, rtol=1e-6)
    trained = load(folder / "trained")
    assert trained.groups["group0"].step == len(losses)
    for name, parameter in trained.parameters:
        ours = state.parameters[name]
        assert ours.requires_grad == parameter.requires_grad == (name != "b1")
        np.testing.assert_allclose(ours.data, parameter.data, rtol=1e-5, atol=1e-7)
    for name, moments in trained.groups["group0"].moments.items():
        for kind, moment in moments.items():
            ours_moment = state.groups["group0"].moments[name][kind]
            np.testing.assert_allclose(ours_moment, moment, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("release", ["1.15.1", "1.16.3"])
def test_their_training_goes_on_and_is_saved_as_today(release: str, tmp_path: Path) -> None:
    folder, path = RELEASES / release, tmp_path / "checkpoint"
    save(load(folder / "trained"), path)
    state = load(path)
    module, optimizer = _session(folder, state)
    module.train()
    with np.load(folder / "run.npz") as run:
        loss = np.asarray(module(run["x"], run["target"])).item()
        assert loss < run["losses"][-1]
    optimizer.step()
    assert state.groups["group0"].step == 4
