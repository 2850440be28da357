"""``edge-train train`` as a user runs it: stopped, killed, started again."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from support.runs import final_weights, finish, run_file, same, start
from support.zoo import ZOO

from edge_train import trainer
from edge_train.cli import main
from edge_train.demo import HERE
from edge_train.runfile import assembly
from edge_train.training.run_folder import states_in

QUICK = ("--epochs", "2", "--show", "none")


def _wait_for_state(process: subprocess.Popen[str], folder: Path) -> None:
    while not states_in(folder):
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        pytest.param(signal.SIGINT, marks=pytest.mark.slow),
        pytest.param(signal.SIGHUP, marks=pytest.mark.slow),
    ],
)
def test_u105_a_signal_saves_and_exits_75(tmp_path: Path, number: signal.Signals) -> None:
    path, run = run_file(tmp_path), tmp_path / "run"
    process = start("train", path, "--epochs", 1000, "--save-every", 0.2)
    try:
        _wait_for_state(process, run)
        process.send_signal(number)
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 75
    reason = "interrupted" if number == signal.SIGINT else "terminated"
    assert f"ended  {reason}" in out
    assert f"to go on  edge-train train {path} --epochs 1000" in out
    assert not (run / "running").exists()
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert (last["event"], last["reason"]) == ("end", reason)
    assert states_in(run)[0].name == f"checkpoint-{last['steps']:09d}"


@pytest.mark.parametrize("swallowed", [False, True])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_files_are_read_exits_75_and_touches_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    number: signal.Signals,
    swallowed: bool,
) -> None:
    def interrupted(*arguments: object, **options: object) -> trainer.Trainer:
        if not swallowed:
            os.kill(os.getpid(), number)
            time.sleep(5)
        with suppress(BaseException):  # as a callback from C does
            os.kill(os.getpid(), number)
            time.sleep(5)
        return made(*arguments, **options)  # type: ignore[arg-type]

    made = assembly.trainer_of
    monkeypatch.setattr(assembly, "trainer_of", interrupted)
    before = [signal.signal(n, signal.default_int_handler) for n in (number, signal.SIGHUP)]
    try:
        assert main(["train", str(run_file(tmp_path)), "--fresh"]) == 75
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        for which, handler in zip((number, signal.SIGHUP), before, strict=True):
            signal.signal(which, handler)
    assert "stopped before the first step; the same command starts" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("stops", [False, True])
def test_the_exit_code_outlives_a_summary_that_nobody_reads(tmp_path: Path, stops: bool) -> None:
    words = ("train", run_file(tmp_path), "--epochs", 1000 if stops else 1, "--save-every", 0.2)
    with open("/dev/full", "w") as full:  # stdout and stderr are as useless as a closed terminal's
        process = start(*words, out=full)
    try:
        if stops:
            _wait_for_state(process, tmp_path / "run")
            process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == (75 if stops else 0)
    finally:
        process.kill()


@pytest.mark.slow
def test_killed_three_times_it_ends_as_if_nothing_had_happened(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    whole = run_file(tmp_path / "whole")
    assert finish("train", whole)[0] == 0
    path, run = run_file(tmp_path / "killed"), tmp_path / "killed" / "run"
    for _ in range(3):
        process = start("train", path, "--save-every", 0.03)
        before = states_in(run)[:1]
        while states_in(run)[:1] == before and process.poll() is None:
            time.sleep(0.002)
        time.sleep(rng.uniform(0, 0.1))
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL
    code, out, err = finish("train", path)
    assert code == 0
    assert "killed: the last run was killed, some time after step" in err
    assert same(final_weights(run), final_weights(tmp_path / "whole" / "run"))
    last, best = (
        next(line for line in out.splitlines() if line.lstrip().startswith(name)).split()[place]
        for name, place in (("accuracy", 1), ("best  accuracy", 2))
    )
    assert float(best) >= float(last) >= 0.98


@pytest.mark.slow
def test_started_again_when_done_it_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(run_file(tmp_path))
    assert main(["train", path, *QUICK]) == 0
    assert "steps  90 (epoch 2)\n" in capsys.readouterr().out
    assert main(["train", path, *QUICK]) == 0
    assert "steps  90 (epoch 2), 90 of them before" in capsys.readouterr().out
    assert main(["train", path, "--epochs", "3", "--show", "none", "--fresh"]) == 0
    assert "steps  135 (epoch 3)\n" in capsys.readouterr().out


@pytest.mark.slow
def test_eval_takes_the_best_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(run_file(tmp_path))
    main(["train", path, *QUICK])
    capsys.readouterr()
    assert main(["eval", path, "--json", "--metrics", "accuracy,top3"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["weights"] == str(tmp_path / "run" / "best")
    assert 0.85 < found["accuracy"] < found["top3"] <= 1
    assert main(["eval", path, "--weights", f"{tmp_path}/missing"]) == 2


def test_without_a_run_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run_file(tmp_path)
    text = path.read_text()
    artifacts = text.split("artifacts = '")[1].split("'")[0]
    data = text.split("train = '")[1].split("'")[0]
    words = ["train", "--artifacts", artifacts, "--data", data, "--steps", "3", "--rate", "0.01"]
    words += ["--set", "data.inputs.pixels=images", "--set", "data.inputs.labels=labels"]
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert "ended  completed" in out
    assert "note: nothing is kept of this run: it has no folder (--folder)" in err
    assert "state  none: the run has no folder" in out
    for more, key in ((["--metrics", "accuracy"], "metrics"), (["--best", "accuracy"], "best")):
        assert main([*words, *more]) == 2
        assert f"evaluation.{key}: there is nothing to evaluate on" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--set", "training.batchsize=3"],
            "no key 'batchsize' in [training]; did you mean 'batch",
        ),
        (["--set", "schedule.rate=fast"], "schedule.rate: expected a number, got 'fast'"),
        (["--set", "schedule.rate=true"], "schedule.rate: expected a number, got true"),
        (["--data", "nix.npz"], "data.train: there is no file or folder 'nix.npz'"),
        (["--metrics", "acuracy"], "no metric 'acuracy'; did you mean 'accuracy'?"),
        (["--set", "evaluation.best=f1"], "'f1' is not evaluated; the metrics are ['loss', 'acc"),
        (["--schedule", "cosin"], "schedule.kind: there is no 'cosin'; did you mean 'cosine'?"),
        (["--set", "schedule.factor=0.5"], "schedule.factor: means nothing to kind 'cosine'"),
        (["--set", "governor.max_temperature=900"], "governor.max_temperature: expected above 0"),
        (["--set", "data.rows=[5,9999]"], "data.rows: expected [first, end) within the 1797 rows"),
        (["--epochs", "x"], "training.epochs: expected a whole number, got 'x'"),
        (["--set", "data.label=y"], "data.label: means nothing to '"),
        (["--set", "data.size=8"], "data.size: means nothing to '"),
        (["--set", "data.inputs.pixel=images"], "no input 'pixel'; did you mean 'pixels'?"),
        (["--set", "data.inputs.pixels=pics"], "the data has no ['pics']; it has ['images', 'lab"),
        (["--set", "nonsense"], "--set takes KEY=VALUE, got 'nonsense'"),
        (["--set", "training=4"], "'training' is a section"),
        (["--set", "optimizer.momentum=0.9"], "optimizer.momentum: the AdamW"),
        (["--set", "data.split=0.5"], "data.split: evaluation has data of its own"),
        (["--set", "progress.show=loud"], "progress.show: expected one of"),
        (["--set", "training.threads=0"], "training.threads: expected 1 or more, got 0"),
        (["--set", "training.nice=-5"], "training.nice: expected 0 to 19, got -5"),
    ],
)
def test_a_mistake_is_named_by_its_key_and_harms_nothing(
    tmp_path: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(run_file(tmp_path))
    kept = tmp_path / "run" / "checkpoint-000000001"
    kept.parent.mkdir()
    kept.write_bytes(b"a state")
    assert main(["train", path, "--fresh", *words]) == 2
    assert said in capsys.readouterr().err
    assert kept.read_bytes() == b"a state"


def test_a_run_file_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.toml"
    for text, said in [
        ("epochs = ", "is no TOML: Invalid value (at end of document)"),
        ("[trainin]\nepochs = 3", "there is no key 'trainin'; did you mean 'training'?"),
        ("training = 3", "'training' is a section, write [training]"),
        ("[training]\nepochs = 'x'", "training.epochs: expected a whole number, got 'x'"),
        ("[training]\nepochs = 3", "artifacts: say where the training artifacts are"),
    ]:
        path.write_text(text)
        assert main(["train", str(path)]) == 2
        assert said in capsys.readouterr().err
    for place, said in (("missing.toml", "No such file or directory"), ("", "is a folder")):
        assert main(["train", str(tmp_path / place)]) == 2
        err = capsys.readouterr().err
        assert said in err
        assert f"'{tmp_path / place}'" in err
        assert "Errno" not in err


@pytest.mark.slow
def test_a_budget_that_is_too_small_is_refused_with_its_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(run_file(tmp_path))
    assert main(["train", path, "--memory-budget", "3MB"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("edge-train: training does not fit into 3.0 MB")
    assert any(line.startswith("  activations ") for line in lines)
    assert not (tmp_path / "run").exists()


def test_weights_of_another_model_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = ZOO["mlp_MSELoss"].checkpoint
    assert main(["eval", str(run_file(tmp_path)), "--weights", str(other)]) == 2
    err = capsys.readouterr().err
    assert "the checkpoint does not belong to the training graph" in err
    assert "conv1" in err


def test_every_option_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--options"]) == 0
    listed = capsys.readouterr().out
    for section in ("data", "training", "schedule", "optimizer", "evaluation", "governor"):
        assert f"[{section}]" in listed
    assert "batch_size = 32             # rows of an update" in listed


def test_what_is_missing_of_the_artifacts_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, run, copy = run_file(tmp_path), tmp_path / "run", tmp_path / "artifacts"
    shutil.copytree(HERE / "artifacts", copy)
    words = ["train", str(path), "--artifacts", str(copy), *QUICK]
    nominal = tmp_path / "nominal"
    assert main(["to-nominal", str(copy / "checkpoint"), str(nominal)]) == 0
    assert main([*words, "--set", f"checkpoint={nominal}"]) == 2
    assert "nominal (names without data)" in (err := capsys.readouterr().err)
    assert "edge-train convert fill" in err
    (copy / "eval_model.onnx").unlink()
    assert main([*words, "--metrics", ""]) == 2
    assert f"data.evaluation: '{copy}' has no eval_model.onnx" in capsys.readouterr().err
    assert not list(run.glob("checkpoint-*"))


@pytest.mark.slow
def test_eval_says_which_weights_it_took(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    path, run = str(run_file(tmp_path)), tmp_path / "run"
    assert main(["eval", path]) == 2
    assert f"there is no run in '{run}'" in capsys.readouterr().err
    assert main(["train", path, *QUICK]) == 0
    data = bytearray((run / "best").read_bytes())
    data[len(data) // 2] ^= 0xFF
    (run / "best").write_bytes(data)
    capsys.readouterr()
    assert main(["eval", path]) == 0
    assert f"weights  {run / 'checkpoint-000000090'}" in capsys.readouterr().out
    assert any("best' is damaged" in text and "not used" in text for text in caplog.messages)
    text = "".join(line for line in Path(path).read_text().splitlines(True) if "folder" not in line)
    Path(path).write_text(text)
    assert main(["eval", path]) == 0
    assert f"weights  {HERE / 'artifacts' / 'checkpoint'}" in capsys.readouterr().out
