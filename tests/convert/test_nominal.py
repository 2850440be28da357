"""Full to nominal: the bytes that the reference makes, and the command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.zoo import ZOO

from edge_train.checkpoint.state import CheckpointState
from edge_train.convert.nominal import to_nominal
from edge_train.errors import CheckpointError

TOOL = Path(__file__).parents[2] / "tools" / "to_nominal.py"
MLP = ZOO["mlp_MSELoss"]


@pytest.mark.parametrize("case", ZOO.values(), ids=lambda case: case.name)
def test_the_bytes_are_those_of_generate_artifacts(case: Any, tmp_path: Path) -> None:
    to_nominal(case.checkpoint, tmp_path / "nominal")
    assert (tmp_path / "nominal").read_bytes() == case.nominal_checkpoint.read_bytes()
    assert case.checkpoint.read_bytes() != case.nominal_checkpoint.read_bytes()


def test_the_state_of_a_run_is_left_out(tmp_path: Path) -> None:
    state = CheckpointState.load_checkpoint(MLP.checkpoint)
    expected = tmp_path / "expected"
    CheckpointState.save_checkpoint(state, tmp_path / "plain")
    to_nominal(tmp_path / "plain", expected)
    state.properties["epoch"] = 3
    state.private["edge_train.x"] = "y"
    CheckpointState.save_checkpoint(state, tmp_path / "used")
    to_nominal((tmp_path / "used").read_bytes(), tmp_path / "nominal")
    assert (tmp_path / "nominal").read_bytes() == expected.read_bytes()


def test_twice_is_once_and_in_place_works(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(MLP.checkpoint.read_bytes())
    for _ in range(2):
        to_nominal(path, path)
        assert path.read_bytes() == MLP.nominal_checkpoint.read_bytes()


def test_a_damaged_source_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError):
        to_nominal(MLP.checkpoint.read_bytes()[:-60], tmp_path / "nominal")
    assert not list(tmp_path.iterdir())


def _run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, TOOL, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_command(tmp_path: Path) -> None:
    done = _run(MLP.checkpoint, tmp_path / "nominal")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "nominal").read_bytes() == MLP.nominal_checkpoint.read_bytes()


@pytest.mark.parametrize(
    ("source", "text"), [("missing", "missing"), (".", "is a folder"), (MLP.eval_model, "no check")]
)
def test_the_command_fails_in_one_line(source: str | Path, text: str, tmp_path: Path) -> None:
    done = _run(tmp_path / source, tmp_path / "nominal")
    assert done.returncode == 2
    assert done.stderr.startswith("to_nominal: ")
    assert text in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_the_command_explains_itself() -> None:
    assert _run().returncode == 2
    assert "nominal" in _run("--help").stdout
