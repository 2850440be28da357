"""The report's page: whole in one file, read by a browser, readable on a phone."""

from __future__ import annotations

import html
import json
import math
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from edge_train.governor import StopReason
from edge_train.progress import Progress, StepRecord
from edge_train.report import page, summary
from edge_train.run_history import History, read_history

RECORD = StepRecord(1, 1, 0.5, 1e-3, 32, 0.5, 100 << 20, 60.0)
WRONG = '<script>document.title="broken"</script><img src=x onerror=alert(1)>'


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def make_run(folder: Path, *, killed: bool = True, words: str = "81 °C") -> Path:
    """Three hours with a kill, a pause, evaluations and a step without a finite loss."""
    clock = Clock()
    for first, last, ends in ((0, 4000, not killed), (3600, 20_000, True)):
        progress = Progress(folder / "metrics.jsonl", quiet=True, clock=clock)
        progress.start(20_000, first)
        for step in range(first + 1, last + 1):
            clock.now += 0.5
            loss = math.nan if step == 500 else 2.0 * math.exp(-step / 5000) + 0.1
            heat = 60 + 15 * math.sin(clock.now / 1500)
            progress.step(replace(RECORD, step=step, loss=loss, temperature=heat))
            if step % 2000 == 0:
                metrics = {"loss": loss, "accuracy": 1 - loss / 3}
                progress.event("evaluation", step=step, metrics=metrics, text=f"step {step}")
            if step == 9000:
                progress.event("pause", step=step, reason="heat", text=words)
                clock.now += 600
                progress.event("resume", step=step, reason="heat", seconds=600)
        if ends:
            progress.close({"reason": StopReason.COMPLETED, "best": {"accuracy": 0.98}})
        else:
            progress._log.flush()  # type: ignore[union-attr]
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("run"))


def test_summary(run: Path) -> None:
    rows = dict(summary(read_history(run)))
    assert rows["state"] == "completed"
    assert rows["steps"] == "20000 of 20000"
    assert rows["time"] == "3:00:00"
    assert rows["steps without a finite loss"] == "1"
    assert rows["peak memory"] == "100 MB"
    assert rows["highest temperature"] == "75 °C"
    assert rows["rows per second"] == "64 (median)"
    assert rows["paused: heat"] == "10:00"
    assert rows["started"] == "2 times, 1 of them killed"
    assert rows["best"] == "accuracy 0.98"


def test_the_page_needs_nothing_beside_it(run: Path) -> None:
    text = page(read_history(run), "digits", 1.0)
    assert len(text.encode()) < 200_000
    assert "<script" not in text
    links = re.findall(r'(?:src|href|url|@import)\s*[=(]\s*"?([^")\s]+)', text)
    assert links == ["data:,"]
    for title in ("Loss", "Accuracy", "Learning rate", "Rows per second", "Memory", "Temperature"):
        assert re.search(rf"<h2>{title}", text), title
    assert text.count("<svg ") == 6
    assert "1970-01-01 00:00 UTC" in text


def test_a_run_of_one_step_and_one_without_any(tmp_path: Path) -> None:
    progress = Progress(tmp_path / "metrics.jsonl", quiet=True)
    progress.start(1)
    text = page(read_history_after(progress, tmp_path), "none", 0.0)
    assert text.count("nothing was measured") == 5
    assert "no end was written" in text
    progress.step(replace(RECORD, rss=None, temperature=None, seconds=0.0, rows=0))
    progress.close()
    text = page(read_history(tmp_path), "one", 0.0)
    assert text.count("<svg ") == 2
    assert page(History(), "empty", 0.0)


def read_history_after(progress: Progress, folder: Path) -> History:
    progress._log.flush()  # type: ignore[union-attr]
    return read_history(folder)


def test_words_of_a_run_cannot_break_the_page(tmp_path: Path) -> None:
    lines = [
        {"event": "start", "step": 0, "total": 5, "run": WRONG},
        {"event": WRONG, "step": 1, WRONG: WRONG, "text": WRONG, "t": 1},
        {"event": "pause", "reason": WRONG, "t": 2},
        {"event": "evaluation", "metrics": {WRONG: 0.5}, "step": 1},
        {"step": 2, "loss": 1.0, "t": 3},
        {"event": "end", "reason": WRONG, WRONG: [WRONG, {WRONG: WRONG}]},
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "metrics.jsonl").write_text(text)
    made = page(read_history(tmp_path), WRONG, 0.0)
    assert "<script" not in made
    assert "<img" not in made
    assert html.escape(WRONG) in made


MEASURE = """<!DOCTYPE html><meta charset="utf-8">
<iframe id="f" src="report.html" style="width:{width}px;height:700px;border:0"></iframe>
<pre id="told"></pre><script>
const faults = [];
window.onerror = (text) => faults.push(String(text));
document.getElementById("f").onload = (event) => {{
  const page = event.target.contentDocument, root = page.documentElement;
  const sizes = [...page.querySelectorAll("svg text")].map(
    (text) => parseFloat(event.target.contentWindow.getComputedStyle(text).fontSize)
      * text.getScreenCTM().a);
  const wide = [...page.querySelectorAll("body *")].filter(
    (e) => e.getBoundingClientRect().right > {width} + 0.5).map((e) => e.tagName);
  document.getElementById("told").textContent = JSON.stringify({{
    faults, wide, scroll: root.scrollWidth, smallest: Math.min(...sizes), title: page.title,
    charts: [...page.querySelectorAll("svg")].filter(
      (svg) => svg.getBoundingClientRect().height > 100).length,
    body: parseFloat(event.target.contentWindow.getComputedStyle(page.body).fontSize)}});
}};
</script>"""


def chromium() -> str:
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        pytest.skip("no chromium on this machine: apt-get install chromium")
    return found


def browse(page_file: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [
        chromium(),
        *("--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files"),
        *("--enable-logging=stderr", "--log-level=0", "--virtual-time-budget=5000"),
        *(f"--user-data-dir={folder / 'profile'}", *words, page_file.as_uri()),
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("width", [360, 1200])
def test_a_browser_shows_it(width: int, run: Path, tmp_path: Path) -> None:
    """Headless Chromium: nothing on the console, every chart drawn, no scrolling sideways."""
    made = page(read_history(run), "digits", 1.0)
    (tmp_path / "report.html").write_text(made, encoding="utf-8")
    (tmp_path / "frame.html").write_text(MEASURE.format(width=width))
    alone = browse(tmp_path / "report.html", tmp_path, "--dump-dom")
    assert alone.returncode == 0
    assert "CONSOLE" not in alone.stderr
    done = browse(tmp_path / "frame.html", tmp_path, "--dump-dom")
    assert "CONSOLE" not in done.stderr
    told = re.search(r'<pre id="told">(\{.*?\})</pre>', done.stdout)
    assert told is not None, done.stderr[-2000:]
    seen = json.loads(html.unescape(told[1]))
    assert seen["faults"] == []
    assert seen["title"] == "digits"
    assert seen["charts"] == 6
    assert seen["wide"] == []
    assert seen["scroll"] <= width
    assert seen["body"] >= 16
    assert seen["smallest"] >= 10.5


@pytest.mark.slow
def test_the_look_at_the_console_can_fail(tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text("<script>undefined_function()</script>")
    assert "CONSOLE" in browse(tmp_path / "report.html", tmp_path, "--dump-dom").stderr
