"""The history of a run from its log: attempts, kills, pauses, files that anyone may have edited."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from edge_train.errors import HistoryError
from edge_train.run_history import read_history


def history_of(folder: Path, *lines: dict[str, Any] | str) -> Any:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    (folder / "metrics.jsonl").write_text("".join(f"{text}\n" for text in texts))
    return read_history(folder)


def start(step: int = 0, total: int = 100, t: float = 0.0) -> dict[str, Any]:
    return {"event": "start", "step": step, "total": total, "t": t}


def at(step: int, t: float, **more: Any) -> dict[str, Any]:
    return {"step": step, "t": t, "loss": 1 / step, "rows": 32, "seconds": 0.5, "lr": 0.1, **more}


def test_one_attempt(tmp_path: Path) -> None:
    end = {"event": "end", "reason": "completed", "t": 3.0}
    found = history_of(tmp_path, start(), at(1, 1.0, rss=5), at(2, 2.0, temperature=40), end)
    assert [(s.step, s.t, s.loss) for s in found.samples] == [(1, 1.0, 1.0), (2, 2.0, 0.5)]
    assert found.samples[0].rows_per_second == 64
    assert found.samples[0].rss == 5
    assert math.isnan(found.samples[0].temperature)
    assert (found.total, found.attempts, found.killed, found.seconds) == (100, 1, 0, 3.0)
    assert found.end["reason"] == "completed"


def test_steps_that_were_done_again_replace_the_first_ones(tmp_path: Path) -> None:
    """Killed after step 3, gone on from the state of step 1; time goes on too."""
    found = history_of(
        tmp_path,
        start(),
        at(1, 1.0),
        at(2, 2.0),
        at(3, 3.0),
        start(step=1),
        at(2, 1.5, loss=9.0),
        {"event": "end", "reason": "time_budget", "t": 2.0},
        start(step=2),
        at(3, 1.0, loss=7.0),
    )
    assert [(s.step, s.loss) for s in found.samples] == [(1, 1.0), (2, 9.0), (3, 7.0)]
    assert [s.t for s in found.samples] == [1.0, 4.5, 6.0]
    assert (found.attempts, found.killed) == (3, 1)
    assert found.end is None


def test_pauses(tmp_path: Path) -> None:
    found = history_of(
        tmp_path,
        start(),
        {"event": "pause", "reason": "heat", "t": 10.0},
        {"event": "pause", "reason": "offline", "t": 12.0},
        {"event": "resume", "reason": "heat", "t": 20.0},
        {"event": "resume", "reason": "heat", "t": 21.0},
        {"event": "end", "t": 30.0},
    )
    assert list(found.pauses()) == [(10.0, 20.0, "heat"), (12.0, 30.0, "offline")]


@pytest.mark.parametrize(
    "line",
    [
        '{"step": 2, "t": 1e999, "loss": "x", "rows": null, "seconds": -1}',
        '{"step": 2, "t": -5, "loss": true}',
        '{"step": 2, "steps": [1], "bad": {}}',
        '{"step": "2"}',
        '{"event": "start", "step": "x", "total": "many"}',
        '{"event": 5, "step": 2}',
        '{"event": "pause"}',
        "{}",
        "\x00\x00",
        f'{{"step": {10**400}, "t": {10**400}}}',
    ],
)
def test_odd_lines_are_taken_or_left(line: str, tmp_path: Path) -> None:
    found = history_of(tmp_path, start(), at(1, 1.0), line, at(3, 2.0))
    assert found.samples[0].step == 1 or found.attempts == 2
    assert found.samples[-1].step == 3
    assert len(list(found.pauses())) <= 1
    assert found.seconds >= 0


def test_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match=r"has no metrics.jsonl"):
        read_history(tmp_path)
    with pytest.raises(HistoryError, match=r"has no metrics.jsonl"):
        read_history(tmp_path / "nowhere")
    for text in ("", "not json\n", "{}\n"):
        (tmp_path / "metrics.jsonl").write_text(text)
        with pytest.raises(HistoryError, match="holds no steps"):
            read_history(tmp_path)
    with pytest.raises(HistoryError, match="cannot be read"):
        read_history(tmp_path / "metrics.jsonl" / "x")
