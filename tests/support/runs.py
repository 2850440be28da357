"""Runs of ``edge-train train`` on the demo's digits, as processes that can be killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import TextIO

import numpy as np

from edge_train.checkpoint.state import CheckpointState
from edge_train.demo import HERE
from edge_train.training.run_folder import RunFolder

RUN_FILE = f"""
artifacts = '{HERE / "artifacts"}'
folder = "run"
[data]
train = '{HERE / "digits.npz"}'
rows = [0, 1437]
evaluation = '{HERE / "digits.npz"}'
evaluation_rows = [1437, 1797]
inputs = {{pixels = "images", labels = "labels"}}
scale = {{pixels = 0.0625}}
[training]
epochs = 20
[schedule]
kind = "cosine"
rate = 0.01
warmup = 45
[evaluation]
metrics = ["accuracy"]
best = "accuracy"
"""


def run_file(folder: Path) -> Path:
    """``run.toml`` in ``folder``, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "run.toml"
    path.write_text(RUN_FILE)
    return path


def heard() -> None:
    """For a child: signals count, whatever started the tests (nohup and shells ignore some)."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


def start(*words: object, out: TextIO | None = None) -> subprocess.Popen[str]:
    """The command, with its output in pipes, or in the one file ``out``."""
    return subprocess.Popen(
        [sys.executable, "-m", "edge_train", *map(str, words)],
        stdout=out or subprocess.PIPE,
        stderr=out or subprocess.PIPE,
        text=True,
        preexec_fn=heard,
    )


def finish(*words: object) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of the command."""
    process = start(*words)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def final_weights(folder: Path) -> dict[str, np.ndarray]:
    """The parameters of the newest whole state of the run in ``folder``."""
    path, _, notes = RunFolder(folder).newest()
    assert path is not None
    assert notes == []
    state = CheckpointState.load_checkpoint(path)
    return {name: np.array(parameter.data) for name, parameter in state.parameters}


def same(first: dict[str, np.ndarray], second: dict[str, np.ndarray]) -> bool:
    """Whether two sets of parameters have the same bits."""
    return first.keys() == second.keys() and all(
        np.array_equal(first[name], second[name]) for name in first
    )
