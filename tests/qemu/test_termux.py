"""Inside the Termux-like tree: what Android has not got, and that training does without."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from edge_train import demo
from edge_train.api import CheckpointState, Module
from edge_train.device import SharedWeights

pytestmark = pytest.mark.skipif(
    os.environ.get("EDGE_TRAIN_TREE") != "termux",
    reason="runs in the Termux-like tree: platforms/qemu/run.py starts it there",
)
HOME = Path(os.environ.get("HOME", "/"))


def test_the_tree_lacks_what_termux_lacks() -> None:
    assert sys.platform == "android"
    for place in ("/tmp", "/dev/shm", "/usr", "/bin", "/etc/passwd"):
        assert not Path(place).exists()
    for module in ("cffi", "numba", "onnx"):
        assert importlib.util.find_spec(module) is None


def test_the_digits_are_trained_and_exported(tmp_path: Path) -> None:
    result = demo.run(tmp_path, epochs=1)
    assert result.accuracy_after > 0.5
    assert result.exported.stat().st_size > 1000


def test_a_run_in_a_home_that_cannot_be_written(tmp_path: Path) -> None:
    """Nothing is written outside the run's folder; without --folder nothing is kept."""
    before = sorted(HOME.rglob("*"))
    arrays = demo.HERE / "digits.npz"
    words = ["-m", "edge_train", "train", "--artifacts", str(demo.HERE / "artifacts")]
    words += [
        "--data",
        str(arrays),
        "--folder",
        str(tmp_path / "run"),
        "--steps",
        "3",
        "--rate",
        "0.01",
    ]
    words += ["--set", f"data.inputs.{_input()}=images", "--set", f"data.scale.{_input()}=0.0625"]
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(HOME.rglob("*")) == before
    assert (tmp_path / "run").is_dir()


def _input() -> str:
    from edge_train.api import CheckpointState, Module

    artifacts = demo.HERE / "artifacts"
    state = CheckpointState.load_checkpoint(artifacts / "checkpoint")
    return Module(artifacts / "training_model.onnx", state).input_names()[0]


def test_weights_are_shared_without_dev_shm() -> None:
    """memfd stands in for /dev/shm."""
    artifacts = demo.HERE / "artifacts"
    state = CheckpointState.load_checkpoint(artifacts / "checkpoint")
    module = Module(artifacts / "training_model.onnx", state, device="shm:termux")
    weights = SharedWeights("termux")
    assert weights.alive
    for name in weights:
        np.testing.assert_array_equal(weights[name], module.state.parameters[name].data)
    assert len(weights) > 2
