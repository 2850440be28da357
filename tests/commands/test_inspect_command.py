"""``edge-train inspect``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.child import ROOT, run_python
from support.zoo import ZOO

from edge_train import cli
from edge_train.checkpoint.state import CheckpointState

CASE = ZOO["conv_bn_maxpool_gap"]


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = cli.main(["inspect", *map(str, words)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_text(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, CASE.checkpoint, CASE.optimizer_model)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert (
        lines[0] == f"{CASE.checkpoint}: checkpoint, {CASE.checkpoint.stat().st_size / 1024:.2f} kB"
    )
    assert "    w1  [4, 3, 3, 3]  float32  432 bytes  trainable" in lines
    assert "  no optimizer state" in lines
    assert "  op_type = AdamWOptimizer" in lines


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, CASE.folder, "--json")
    assert (code, err) == (0, "")
    records = json.loads(out)
    kinds = {Path(record["path"]).name: record["kind"] for record in records}
    assert kinds["checkpoint"] == "checkpoint"
    assert kinds["nominal_checkpoint"] == "nominal checkpoint"
    assert kinds["training_model.onnx"] == "training model"
    assert kinds["eval_model.onnx"] == "eval model"


def test_names_cannot_write_to_the_terminal(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    state = CheckpointState.load_checkpoint(CASE.checkpoint)
    state.properties["a\x1b]0;title\x07"] = "\x1b[2J" + "x" * 500
    CheckpointState.save_checkpoint(state, tmp_path / "c")
    code, out, _ = run(capsys, tmp_path / "c")
    assert code == 0
    assert "\x1b" not in out
    assert r"a\x1b]0;title\x07 = \x1b[2Jxxx" in out
    assert "(504 characters)" in out


def test_mistakes_are_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "text").write_text("x" * 99)
    for path in (tmp_path / "none", tmp_path / "text", tmp_path):
        code, out, err = run(capsys, path)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert err.startswith("edge-train: ")
        assert str(path) in err


def test_help_has_examples_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["inspect", "--help"])
    out = capsys.readouterr().out
    assert "edge-train inspect training_model.onnx --json" in out
    assert "exit codes: 0" in out


def test_it_needs_neither_onnx_nor_onnxruntime() -> None:
    code = """
import sys
sys.modules["onnx"] = sys.modules["onnxruntime"] = None
from edge_train import cli
raise SystemExit(cli.main(["inspect", sys.argv[1]]))
"""
    done = run_python(code, CASE.folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert "training model" in done.stdout


@pytest.mark.slow
def test_a_pipe_that_is_closed_early_is_quiet() -> None:
    """edge-train inspect ... | head -1"""
    command = [sys.executable, "-m", "edge_train", "inspect", *map(str, [CASE.folder] * 200)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(60) == 141
