"""Pauses of a real run in a process of its own: quiet, and ended by a signal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support.child import ROOT, run_python, succeed
from support.digits import trainer
from support.machine import write_tree

from edge_train.governor import Governor, Limits, StopReason
from edge_train.metrics_log import read_metrics
from edge_train.progress import Progress
from edge_train.report import summary
from edge_train.run_history import read_history
from edge_train.sensors import Sensors

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
result = trainer(1437, epochs=2, batch_size=1, governor=governor).run()
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


BATTERY = {
    "sys/class/power_supply/b/type": "Battery",
    "sys/class/power_supply/b/capacity": "12",
    "sys/class/power_supply/b/status": "Discharging",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limits", "files", "reason"),
    [
        (
            {"max_temperature": 80},
            {
                "sys/class/thermal/thermal_zone0/type": "cpu",
                "sys/class/thermal/thermal_zone0/temp": "81000",
            },
            StopReason.HEAT,
        ),
        ({"min_battery": 20}, BATTERY, StopReason.LOW_BATTERY),
        ({"require_power": True}, BATTERY, StopReason.UNPLUGGED),
        ({"min_memory": 2**30}, {"proc/meminfo": "MemAvailable: 9 kB"}, StopReason.LOW_MEMORY),
        (
            {"require_wifi": True},
            {"sys/class/net/w/wireless/x": "", "sys/class/net/w/operstate": "down"},
            StopReason.OFFLINE,
        ),
        ({"time_budget": 0.05}, {}, StopReason.TIME_BUDGET),
    ],
)
def test_u106_the_reason_is_in_the_result_and_in_the_log(
    limits: dict[str, Any], files: dict[str, str], reason: StopReason, tmp_path: Path
) -> None:
    """U106: a run that was stopped says why, and is saved."""
    sensors = Sensors(write_tree(tmp_path / "machine", files), "/nonexistent")
    governor = Governor(Limits(**limits, max_pause=0.2, interval=0.05), sensors=sensors)
    log = tmp_path / "run" / "metrics.jsonl"
    progress = Progress(log, quiet=True)
    folder = tmp_path / "run"
    result = trainer(governor=governor, progress=progress, folder=folder, epochs=1000).run()
    assert result.reason is reason
    assert result.saved is not None
    assert result.saved.is_file()
    lines, broken = read_metrics(log)
    assert broken == 0
    assert (lines[-1]["event"], lines[-1]["reason"]) == ("end", reason.value)
    told = [line["reason"] for line in lines if line.get("event") == "pause"]
    assert told == ([] if reason is StopReason.TIME_BUDGET else [reason.value])
    rows = dict(summary(read_history(folder)))
    assert rows["state"] == reason.value.replace("_", " ")


@pytest.mark.slow
def test_u095_pauses_are_quiet() -> None:
    """U095: half of the time off, and next to no processor time in it."""
    told = json.loads(succeed(run_python(DUTY, ROOT / "tests")))
    assert told["steps"] == 2874
    assert 0.4 < told["wall"] / told["whole"] < 0.6
    assert told["wall"] > 0.5
    assert told["cpu"] < 0.02 * told["wall"], told


@pytest.mark.slow
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
