"""``edge-train report`` and ``edge-train doctor``: words, files, exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.child import ROOT

from edge_train import cli, doctor
from edge_train.doctor import Check, Outcome
from edge_train.progress import Progress, StepRecord


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    folder = tmp_path / "digits"
    progress = Progress(folder / "metrics.jsonl", quiet=True)
    progress.start(3)
    for step in range(1, 4):
        progress.step(StepRecord(step, 1, 1 / step, 0.1, 32, 0.1, 1 << 20, 50.0))
    progress.close({"reason": "completed"})
    return folder


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = cli.main([str(word) for word in words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_page_is_written(
    capsys: pytest.CaptureFixture[str], finished: Path, tmp_path: Path
) -> None:
    assert run(capsys, "report", finished) == (0, f"{finished / 'report.html'}\n", "")
    text = (finished / "report.html").read_text()
    assert "<h1>digits</h1>" in text
    out = tmp_path / "deep" / "page.html"
    assert run(capsys, "report", finished / "metrics.jsonl", "--out", out)[0] == 0
    assert "<h1>digits</h1>" in out.read_text()


def test_the_summary_in_the_terminal(capsys: pytest.CaptureFixture[str], finished: Path) -> None:
    code, out, err = run(capsys, "report", finished, "--text")
    assert (code, err) == (0, "")
    assert "state  completed\n" in out
    assert "steps  3 of 3\n" in out
    assert not (finished / "report.html").exists()


def test_a_run_file(capsys: pytest.CaptureFixture[str], finished: Path, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('folder = "digits"\n')
    assert run(capsys, "report", tmp_path / "run.toml") == (0, f"{finished / 'report.html'}\n", "")
    (tmp_path / "run.toml").write_text("")
    code, _, err = run(capsys, "report", tmp_path / "run.toml")
    assert (code, err.count("\n")) == (2, 1)
    assert "no key 'folder'" in err


def test_a_terminal_without_a_degree_sign(finished: Path) -> None:
    command = [sys.executable, "-m", "edge_train", "report", str(finished), "--text"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert r"50 \xb0C" in done.stdout


def test_mistakes_are_one_line(
    capsys: pytest.CaptureFixture[str], finished: Path, tmp_path: Path
) -> None:
    for words in ((tmp_path,), (tmp_path / "none",), (finished, "--out", finished)):
        code, out, err = run(capsys, "report", *words)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert err.startswith("edge-train: ")


def test_nothing_of_the_run_is_written_over(
    capsys: pytest.CaptureFixture[str], finished: Path, tmp_path: Path
) -> None:
    (tmp_path / "run.toml").write_text('folder = "digits"\n')
    for name in ("best", "checkpoint-000000003", "running", "best.data"):
        (finished / name).write_bytes(b"kept")
    (tmp_path / "link").symlink_to(finished / "metrics.jsonl")
    before = {file: file.read_bytes() for file in [*finished.iterdir(), tmp_path / "run.toml"]}
    log = finished / "metrics.jsonl"
    for out in [*before, tmp_path / "link", finished / ".." / "digits" / "metrics.jsonl"]:
        for place in (finished, log, tmp_path / "run.toml"):
            if out == tmp_path / "run.toml" and place != out:
                continue  # nothing says that they belong together
            code, said, err = run(capsys, "report", place, "--out", out)
            assert (code, said, err.count("\n")) == (2, "", 1)
            assert "name another file" in err
    assert {file: file.read_bytes() for file in before} == before
    assert run(capsys, "report", finished)[0] == run(capsys, "report", finished)[0] == 0


@pytest.mark.slow
def test_the_doctor_here(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "doctor")
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == "machine"
    assert out.endswith("\nPASS: training works here\n")


@pytest.mark.slow
def test_a_failed_check_is_told_by_the_exit_code(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    code, out, _ = run(capsys, "doctor", "--json", "--folder", tmp_path / "file" / "runs")
    told = json.loads(out)
    assert (code, told["passed"]) == (1, False)
    failed = [check for check in told["checks"] if check["outcome"] == "FAIL"]
    assert [check["group"] for check in failed] == ["places"]
    assert failed[0]["remedy"]


def test_remedies_are_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [("packages", Check("numpy", Outcome.FAIL, "missing", "pip install numpy"))]
    monkeypatch.setattr(doctor, "examine", lambda host: iter(found))
    code, out, _ = run(capsys, "doctor")
    assert code == 1
    assert out.splitlines() == [
        "packages",
        "  FAIL  numpy: missing",
        "        -> pip install numpy",
        "",
        "FAIL: training does not work here",
    ]


@pytest.mark.parametrize("command", ["report", "doctor"])
def test_help_has_examples_and_exit_codes(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main([command, "--help"])
    out = capsys.readouterr().out
    assert f"examples:\n  edge-train {command}" in out
    assert "exit codes: 0" in out
