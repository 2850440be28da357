"""Pauses of a real run in a process of its own: quiet, and ended by a signal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from support.child import ROOT, run_python, succeed
from support.machine import write_tree

SETUP = """
import json, sys, time
from pathlib import Path
sys.path[:0] = [sys.argv[1]]
from support.digits import trainer
from edge_train.governor import Governor, Limits
from edge_train.progress import Progress
from edge_train.sensors import Sensors
"""
DUTY = (
    SETUP
    + """
governor = Governor(Limits(duty_cycle=50))
idle = {"cpu": 0.0, "wall": 0.0}
doze = governor._doze
def watched(*arguments):
    cpu, wall = time.process_time(), time.monotonic()
    doze(*arguments)
    idle["cpu"] += time.process_time() - cpu
    idle["wall"] += time.monotonic() - wall
governor._doze = watched
start = time.monotonic()
result = trainer(400, epochs=1, batch_size=1, governor=governor).run()
print(json.dumps({**idle, "whole": time.monotonic() - start, "steps": result.steps}))
"""
)
HOT = (
    SETUP
    + """
root = Path(sys.argv[2])
governor = Governor(Limits(max_temperature=80), sensors=Sensors(root, "/nonexistent"))
made = trainer(governor=governor, folder=root / "run", epochs=50,
               progress=Progress(root / "run" / "metrics.jsonl"))
result = made.run()
print(json.dumps({"reason": result.reason.value, "steps": result.steps}))
"""
)


def test_u095_pauses_are_quiet() -> None:
    """U095: half of the time off, and next to no processor time in it."""
    told = json.loads(succeed(run_python(DUTY, ROOT / "tests")))
    assert told["steps"] == 400
    assert 0.4 < told["wall"] / told["whole"] < 0.6
    assert told["wall"] > 0.5
    assert told["cpu"] < 0.02 * told["wall"], told


def test_u105_sigterm_in_a_pause_is_heard(tmp_path: Path) -> None:
    """U105: a run that waits for cooler weather saves and leaves when it is told to."""
    zone = "sys/class/thermal/thermal_zone0"
    write_tree(tmp_path, {f"{zone}/type": "cpu-thermal", f"{zone}/temp": "90000"})
    log = tmp_path / "run" / "metrics.jsonl"
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", HOT, str(ROOT / "tests"), str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        # the pause is told on stderr; the log keeps its lines for a minute
        assert process.stderr is not None
        assert process.stderr.readline() == "pause heat: 90.0 °C, goes on at 75 °C\n"
        time.sleep(0.3)
        asked = time.monotonic()
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=20)
        assert time.monotonic() - asked < 5
    finally:
        process.kill()
        process.wait()
    assert json.loads(out) == {"reason": "terminated", "steps": 1}
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    events = [line["event"] for line in lines if "event" in line]
    assert events[0] == "start"
    assert events[-3:] == ["pause", "resume", "end"]
    assert lines[-1]["reason"] == "terminated"
