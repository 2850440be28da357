"""The command edge-train: what it prints, its exit codes, and errors of one line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.child import ROOT
from support.zoo import ZOO

import edge_train
from edge_train import cli, demo
from edge_train.checkpoint.state import CheckpointState
from edge_train.errors import ArtifactError

ENV = {**os.environ, "PYTHONPATH": str(ROOT)}
CASE = ZOO["conv_bn_maxpool_gap"]


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    """Exit code, stdout, stderr; argparse leaves by SystemExit."""
    try:
        code = cli.main([str(word) for word in words])
    except SystemExit as left:
        code = int(str(left.code))
    out, err = capsys.readouterr()
    return code, out, err


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--version") == (0, f"edge-train {edge_train.__version__}\n", "")
    code, out, err = run(capsys, "--help")
    assert (code, err) == (0, "")
    assert "demo" in out
    assert "to-nominal" in out
    for command in ("demo", "to-nominal"):
        code, out, err = run(capsys, command, "--help")
        assert (code, err) == (0, "")
        assert out.startswith(f"usage: edge-train {command}")


def test_to_nominal_writes_the_references_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(capsys, "to-nominal", CASE.checkpoint, tmp_path / "nominal") == (0, "", "")
    assert (tmp_path / "nominal").read_bytes() == CASE.nominal_checkpoint.read_bytes()
    assert CheckpointState.load_checkpoint(tmp_path / "nominal").is_nominal


@pytest.mark.parametrize("source", ["no such file", ".", "an onnx file", "half a file"])
def test_a_checkpoint_that_cannot_be_read(
    source: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "half a file").write_bytes(CASE.checkpoint.read_bytes()[:700])
    (tmp_path / "an onnx file").write_bytes(CASE.model.read_bytes())
    code, out, err = run(capsys, "to-nominal", tmp_path / source, tmp_path / "nominal")
    assert (code, out) == (2, "")
    assert err.startswith("edge-train: ")
    assert err.count("\n") == 1
    assert str(tmp_path) in err
    assert not (tmp_path / "nominal").exists()


def test_a_place_that_cannot_be_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, out, err = run(capsys, "to-nominal", CASE.checkpoint, tmp_path / "file" / "nominal")
    assert (code, out, err.count("\n")) == (2, "", 1)
    code, out, err = run(capsys, "demo", "--folder", tmp_path / "file", "--epochs", 1)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert str(tmp_path / "file") in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "required: COMMAND"),
        (["dmeo"], "dmeo"),
        (["demo", "--epochs", "0"], "expected a whole number >= 1, got '0'"),
        (["demo", "--epochs", "-3"], "expected a whole number >= 1, got '-3'"),
        (["demo", "--epochs", "many"], "expected a whole number >= 1, got 'many'"),
        (["demo", "--epochs"], "expected one argument"),
        (["to-nominal", "one"], "required: nominal"),
        (["--color"], "COMMAND"),
    ],
)
def test_wrong_words(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "")
    assert err.startswith("usage: edge-train")
    assert said in err.splitlines()[-1]


@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        (ArtifactError("several:\n  one\n  two"), 2, "edge-train: several: one two\n"),
        (ArtifactError("n:" + "\n  x" * 40 + "\nend"), 2, f"n:{' x' * 12} and 28 more. end\n"),
        (PermissionError(13, "Permission denied", "/x"), 2, "'/x': Permission denied\n"),
        (OSError(28, "No space left on device"), 2, "edge-train: No space left on device\n"),
        (FileNotFoundError("no 'x'"), 2, "edge-train: no 'x'\n"),
        (ImportError("Numba is not installed"), 2, "edge-train: Numba is not installed\n"),
        (KeyboardInterrupt(), 130, "edge-train: stopped\n"),
    ],
)
def test_what_a_command_raises_is_one_line(
    raised: BaseException,
    code: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: object) -> int:
        raise raised

    monkeypatch.setattr(demo, "main", fail)
    got, out, err = run(capsys, "demo")
    assert (got, out, err.count("\n")) == (code, "", 1)
    assert err.endswith(said)


def test_a_kernel_choice_that_is_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("EDGE_TRAIN_KERNELS", "fast")
    code, out, err = run(capsys, "demo", "--epochs", 1, "--folder", tmp_path)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "EDGE_TRAIN_KERNELS is 'fast'" in err


def test_a_mistake_in_the_package_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise AttributeError("a bug")

    monkeypatch.setattr(demo, "main", fail)
    with pytest.raises(AttributeError):
        cli.main(["demo"])


def test_the_module_is_the_command(tmp_path: Path) -> None:
    """python -m edge_train: exit code and one line, no traceback."""
    command = [sys.executable, "-m", "edge_train", "to-nominal", str(tmp_path / "no"), "x"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=tmp_path, env=ENV
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("edge-train: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("words", [("to-nominal", "no", "x"), ("inspect", str(CASE.checkpoint))])
def test_words_that_cannot_be_written_are_a_plain_exit_code(words: tuple[str, ...]) -> None:
    """Neither the traceback's 1 nor the 120 of an interpreter that cannot flush."""
    command = [sys.executable, "-m", "edge_train", *words]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=full, check=False, env=ENV)
    assert done.returncode == 2


def test_help_has_no_doubled_signs(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "demo", "--help")
    assert code == 0
    assert "97 % of the test" in " ".join(out.split())
    for command in ("artifacts", "convert", "doctor", "estimate", "eval", "export", "train"):
        assert "%%" not in run(capsys, command, "--help")[1]
