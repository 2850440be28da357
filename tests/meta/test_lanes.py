"""Every test belongs to a lane, every lane runs in .ci/run and shows in its table."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.tiers import FOLDERS, LANES

ROOT = Path(__file__).parents[2]
CI = (ROOT / ".ci" / "run").read_text()
MAKEFILE = (ROOT / "Makefile").read_text()
PYPROJECT = (ROOT / "pyproject.toml").read_text()


def markers() -> list[str]:
    declared = re.search(r"^markers = \[(.*?)^\]", PYPROJECT, re.MULTILINE | re.DOTALL)
    assert declared is not None
    return re.findall(r'"(\w+):', declared[1])


def test_every_marker_has_a_command() -> None:
    assert sorted(markers()) == sorted(LANES)
    assert set(FOLDERS) <= set(LANES)


@pytest.mark.parametrize("marker", LANES)
def test_marker_is_run_by_ci(marker: str) -> None:
    target = re.search(rf"^{marker}:.*(\n\t.*)* -m {marker}\b", MAKEFILE, re.MULTILINE)
    by_make = target and f"make {marker}" in CI
    by_pytest = re.search(rf'-m "[^"]*\b{marker}\b', CI)
    assert by_make or by_pytest


@pytest.mark.parametrize("marker", LANES)
def test_marker_is_no_part_of_smoke(marker: str) -> None:
    assert re.search(rf'"-m=not [^"]*\b{marker}\b', PYPROJECT)


def test_lanes_of_ci_are_those_of_its_table() -> None:
    declared = re.search(r"^LANES=\((.*)\)$", CI, re.MULTILINE)
    assert declared is not None
    assert sorted(declared[1].split()) == sorted(re.findall(r"^ *lane (\w+) \d", CI, re.MULTILINE))


@pytest.mark.parametrize("command", ["demo", "test", "test-all", "parity", "slow", "check"])
def test_make_has_the_commands(command: str) -> None:
    assert re.search(rf"^{command}:", MAKEFILE, re.MULTILINE)
    assert len(MAKEFILE.splitlines()) <= 40


def table(folder: Path, *names: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools" / "lane_table.py"), str(folder), *names]
    return subprocess.run(command, capture_output=True, text=True, check=False)


REPORT = """<testsuites><testsuite>
<testcase name="a"/><testcase name="b"/>
<testcase name="c"><skipped message="no board here"/></testcase>{more}
</testsuite></testsuites>"""


def test_table_counts_and_gives_reasons(tmp_path: Path) -> None:
    (tmp_path / "test.result").write_text("0 12\n")
    (tmp_path / "test.xml").write_text(REPORT.format(more=""))
    (tmp_path / "demo.result").write_text("0 3\n")
    done = table(tmp_path, "test", "demo")
    assert done.returncode == 0
    assert done.stdout.endswith("\n3 passed, 0 failed, 1 skipped\n")
    assert "1: no board here" in done.stdout


def test_table_gives_the_reason_of_a_whole_file(tmp_path: Path) -> None:
    (tmp_path / "test.result").write_text("0 12\n")
    text = "(&apos;/a.py&apos;, 20, &apos;Skipped: no library here&apos;)"
    file = f'<testcase name="f"><skipped message="collection skipped">{text}</skipped></testcase>'
    (tmp_path / "test.xml").write_text(REPORT.format(more=file))
    assert "2 (1: no board here; 1: no library here (a file))" in table(tmp_path, "test").stdout


@pytest.mark.parametrize(
    ("result", "report", "row"),
    [
        ("2 1", None, "exit 2"),
        ("1 1", '<testcase name="d"><failure message="x"/></testcase>', "exit 1"),
        ("0 1", '<testcase name="d"><failure message="x"/></testcase>', "exit 0?"),
    ],
)
def test_table_fails_with_a_lane(tmp_path: Path, result: str, report: str | None, row: str) -> None:
    (tmp_path / "test.result").write_text(result)
    if report is not None:
        (tmp_path / "test.xml").write_text(REPORT.format(more=report))
    done = table(tmp_path, "test")
    assert done.returncode == 1
    assert row in done.stdout
    assert ", 1 failed, " in done.stdout


def test_table_fails_for_a_lane_without_result_or_name(tmp_path: Path) -> None:
    (tmp_path / "demo.result").write_text("0 1")
    done = table(tmp_path, "test")
    assert done.returncode == 1
    assert "MISSING" in done.stdout
    assert "UNLISTED" in done.stdout
