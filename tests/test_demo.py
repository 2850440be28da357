"""The demo learns to read digits, from the nominal checkpoint to the exported file."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from support.child import ROOT

from edge_train import demo
from edge_train.api import CheckpointState

ENV = {**os.environ, "PYTHONPATH": str(ROOT)}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[demo.Result, Path]:
    folder = tmp_path_factory.mktemp("demo") / "made by the demo"
    return demo.run(folder, epochs=3), folder


@pytest.mark.slow
def test_three_epochs_reach_ninety_percent(finished: tuple[demo.Result, Path]) -> None:
    result, _ = finished
    assert result.accuracy_before < 0.3
    assert result.accuracy_after >= 0.9
    assert result.steps == 3 * 45
    assert 0 < result.median_step_s < 1
    assert result.peak_memory_mb > 20


def test_the_exported_file_runs_in_plain_onnxruntime(finished: tuple[demo.Result, Path]) -> None:
    result, folder = finished
    assert result.exported == folder / "digits.onnx"
    session = onnxruntime.InferenceSession(result.exported, providers=["CPUExecutionProvider"])
    assert [value.name for value in session.get_inputs()] == ["pixels"]
    _, test = demo.load_digits()
    answers = session.run(None, {"pixels": test.x})[0].argmax(axis=1)
    assert float(np.mean(answers == test.labels)) == result.accuracy_after


def test_the_files_it_leaves(finished: tuple[demo.Result, Path]) -> None:
    _, folder = finished
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["before.onnx", "digits.onnx", "nominal", "trained"]
    assert CheckpointState.load_checkpoint(folder / "nominal").is_nominal
    trained = CheckpointState.load_checkpoint(folder / "trained")
    assert trained.properties["epoch"] == 3
    assert trained.groups["group0"].step == 3 * 45


def test_digits_are_the_data_set_and_split_once() -> None:
    training, test = demo.load_digits()
    assert (len(training.labels), len(test.labels)) == (1437, 360)
    for part in (training, test):
        assert part.x.shape == (len(part.labels), 1, 8, 8)
        assert (part.x.dtype, part.labels.dtype) == (np.float32, np.int64)
        assert (part.x.min(), part.x.max()) == (0, 1)
        assert set(part.labels) == set(range(10))
    rows = {row.tobytes() for row in training.x}
    assert not any(row.tobytes() in rows for row in test.x)
    assert (demo.HERE / "digits.npz").stat().st_size < 100_000


def test_an_epoch_sees_each_image_once() -> None:
    training, _ = demo.load_digits()
    batches = list(training.batches(32, np.random.default_rng(0)))
    assert [len(labels) for _, labels in batches] == [32] * 44 + [29]
    seen = sorted(row.tobytes() for x, _ in batches for row in x)
    assert seen == sorted(row.tobytes() for row in training.x)


@pytest.mark.slow
def test_the_whole_command(tmp_path: Path) -> None:
    """python -m edge_train demo: 97 % or more, the table on stdout, nothing on stderr."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "edge_train", "demo"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=ENV,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    after = re.search(r"test accuracy after +([\d.]+)%", done.stdout)
    assert after is not None
    assert float(after[1]) >= 97
    for row in ("test accuracy before", "median step", "peak memory", "whole demo"):
        assert row in done.stdout
    assert done.stderr == ""  # a bar is for terminals
    assert not list(tmp_path.iterdir())


def test_one_epoch_is_not_enough_for_exit_code_0(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command tells a network that has not learned enough."""
    assert demo.main(tmp_path, epochs=1) == 1
    assert "test accuracy after" in capsys.readouterr().out
