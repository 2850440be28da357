"""``edge-train export``."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from support.digits import ARTIFACTS, digits, trainer
from support.zoo import ZOO

from edge_train import cli
from edge_train.session import run_model


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = cli.main(["export", *map(str, words)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_artifacts_of_a_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for name in ("checkpoint", "eval_model.onnx"):
        shutil.copy(ARTIFACTS / name, tmp_path)
    code, out, err = run(capsys, tmp_path)
    assert (code, err) == (0, "")
    assert out.startswith(f"{tmp_path / 'inference.onnx'}: logits, 0.05 MB, from ")
    images = digits()[1].x[:5]
    assert run_model(tmp_path / "inference.onnx", [images])[0].shape == (5, 10)


def test_a_run_gives_its_best_weights(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    _, test = digits()
    folder = tmp_path / "run"
    made = trainer(epochs=1, evaluation=(test.x, test.labels), folder=folder)
    made.run()
    out_file = tmp_path / "deep" / "digits.onnx"
    words = ("--eval", ARTIFACTS / "eval_model.onnx", "--out", out_file)
    code, out, err = run(capsys, folder, *words)
    assert (code, err) == (0, "")
    assert f"from {folder / 'best'}" in out
    made.module.export_model_for_inferencing(tmp_path / "same.onnx", ["logits"])
    expected = run_model(tmp_path / "same.onnx", [test.x])[0]
    assert np.array_equal(run_model(out_file, [test.x])[0], expected)


def test_a_run_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    trainer(epochs=1, folder=tmp_path / "run").run()
    file = tmp_path / "run.toml"
    head = f'artifacts = "{ARTIFACTS}"\nfolder = "run"\n'
    file.write_text(head)
    code, out, err = run(capsys, file)
    assert (code, err) == (0, "")
    assert out.startswith(f"{tmp_path / 'run' / 'inference.onnx'}: logits, ")
    file.write_text(f'{head}[evaluation]\nprediction = "nowhere"\n')
    assert "nowhere" in run(capsys, file)[2]
    file.write_text('folder = "run"\n')
    code, out, err = run(capsys, file)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "no key 'artifacts'" in err


@pytest.mark.parametrize("name", ["mlp_MSELoss", "mlp_BCEWithLogitsLoss", "unet_concat_residual"])
def test_the_prediction_is_found(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    case = ZOO[name]
    out_file = tmp_path / "x.onnx"
    code, out, err = run(capsys, case.checkpoint, "--out", out_file)
    assert (code, err) == (0, "")
    assert f"{out_file}: y, " in out
    assert run_model(out_file, [case.feed["x"]])[0].shape


def test_named_outputs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    case = ZOO["transformer_LNop_3out_opset17"]
    words = (case.checkpoint, "--out", tmp_path / "x.onnx", "--output", "y")
    code, out, _ = run(capsys, *words)
    assert code == 0
    assert ": y, " in out


def test_no_part_of_the_artifacts_is_written_over(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    names = ("checkpoint", "eval_model.onnx", "training_model.onnx", "optimizer_model.onnx")
    for name in names:
        shutil.copy(ARTIFACTS / name, tmp_path)
    before = {name: (tmp_path / name).read_bytes() for name in names}
    os.link(tmp_path / "checkpoint", tmp_path / "link")
    for name in (*names, "link"):
        code, out, err = run(capsys, tmp_path, "--out", tmp_path / name)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert "name another file" in err
    assert {name: (tmp_path / name).read_bytes() for name in names} == before
    for _ in range(2):  # an older export is replaced
        assert run(capsys, tmp_path)[0] == 0


def test_no_part_of_a_run_is_written_over(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    trainer(steps=1, folder=tmp_path / "run").run()
    (tmp_path / "run" / "metrics.jsonl").write_text("{}\n")
    file = tmp_path / "run.toml"
    file.write_text(f'artifacts = "{ARTIFACTS}"\nfolder = "run"\n')
    before = {path: path.read_bytes() for path in (file, *(tmp_path / "run").iterdir())}
    for path in before:
        code, _, err = run(capsys, file, "--out", path)
        assert (code, "name another file" in err) == (2, True), path
    assert {path: path.read_bytes() for path in before} == before


def test_mistakes_are_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    case = ZOO["mlp_no_loss_scalar"]
    nominal = ZOO["mlp_MSELoss"].nominal_checkpoint
    for words, said in (
        ((tmp_path,), "no whole state of a run"),
        ((tmp_path / "none",), "there is no"),
        ((tmp_path / "none", "--eval", case.eval_model), "there is no"),
        ((case.training_model,), "is a model: give a run file"),
        ((case.checkpoint, "--eval", tmp_path / "none"), "--eval"),
        ((nominal, "--eval", ZOO["mlp_MSELoss"].eval_model), "nominal"),
        ((case.checkpoint, "--output", "nowhere"), "nowhere"),
        ((case.checkpoint, "--eval", case.training_model), "eval"),
    ):
        code, out, err = run(capsys, *words, "--out", tmp_path / "x.onnx")
        assert (code, out, err.count("\n")) == (2, "", 1), words
        assert said in err
    assert not (tmp_path / "x.onnx").exists()


def test_help_has_examples_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["export", "--help"])
    out = capsys.readouterr().out
    assert "edge-train export runs/digits --eval" in out
    assert "exit codes: 0" in out
