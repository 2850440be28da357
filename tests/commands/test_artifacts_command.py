"""``edge-train artifacts``."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.child import run_python
from support.generated import mlp

from edge_train import cli
from edge_train.checkpoint.files import open_checkpoint
from edge_train.optimizer_spec import read_spec


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    path.write_bytes(mlp().SerializeToString())
    return path


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = cli.main(["artifacts", *map(str, words)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_head_alone(capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ("--train", "?2", "--out", out, "--nominal", "--clip", 1.5, "--weight-decay", 0.01)
    code, said, err = run(capsys, model, "--loss", "cross-entropy", *words)
    assert (code, err) == (0, "")
    assert said == f"{out}: 2 parameters to train (0.00 MiB), 2 frozen (0.00 MiB)\n"
    with open_checkpoint(out / "checkpoint") as state:
        assert [tensor.name for tensor in state.trainable] == ["w2", "b2"]
    assert (out / "nominal_checkpoint").exists()
    spec = read_spec(out / "optimizer_model.onnx")
    assert (spec.max_grad_norm, spec.is_adamw) == (1.5, True)
    assert spec.weight_decay == pytest.approx(0.01)


@pytest.mark.parametrize("loss", ["mse", "l1", "huber", "bce-with-logits", "kl-div"])
def test_losses_by_name(
    loss: str, capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path
) -> None:
    words = ("--loss", loss, "--optimizer", "sgd", "--freeze", "b1", "b2", "--prefix", "p_")
    code, said, err = run(capsys, model, *words, "--out", tmp_path)
    assert (code, err) == (0, "")
    assert "2 parameters to train" in said
    assert (tmp_path / "p_training_model.onnx").exists()


@pytest.mark.parametrize("name", ["eval_model.onnx", "training_model.onnx", "checkpoint"])
def test_the_model_is_not_written_over(
    name: str, capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path
) -> None:
    forward = model.rename(tmp_path / f"p_{name}")
    before = forward.read_bytes()
    words = (forward, "--loss", "mse", "--out", tmp_path)
    code, said, err = run(capsys, *words, "--prefix", "p_")
    assert (code, said, err.count("\n")) == (2, "", 1)
    assert "name another file" in err
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [before]
    assert run(capsys, *words)[0] == 0


def test_mistakes_are_one_line(
    capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    for words in (
        (model, "--loss", "mse", "--train", "w9", "--out", out),
        (model, "--loss", "none", "--out", out),
        (tmp_path / "no.onnx", "--loss", "mse", "--out", out),
        (model, "--loss", "mse", "--optimizer", "sgd", "--weight-decay", 1, "--out", out),
    ):
        code, said, err = run(capsys, *words)
        assert (code, said, err.count("\n")) == (2, "", 1)
        assert err.startswith("edge-train: ")
    assert not out.exists()


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["artifacts", "--help"])
    assert "edge-train artifacts model.onnx --loss cross-entropy" in capsys.readouterr().out


def test_without_onnx(model: Path, tmp_path: Path) -> None:
    """Importing the command line needs no onnx; making artifacts says how to get it."""
    code = """
import sys
sys.modules["onnx"] = None
from edge_train import cli
raise SystemExit(cli.main(["artifacts", sys.argv[1], "--loss", "mse", "--out", sys.argv[2]]))
"""
    done = run_python(code, model, tmp_path / "out")
    assert (done.returncode, done.stdout) == (2, "")
    assert "pip install edge-train[artifacts]" in done.stderr
    assert done.stderr.count("\n") == 1
