"""kill -9 at random moments of a run that saves after every step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.child import run_python, succeed
from support.digits import trainer
from support.runs import final_weights, same

STEPS = 60
#: the parent loads everything but makes no session: a fork of it starts at once
_CHILD = """
import os, signal, sys, time
import numpy as np
sys.path.insert(0, sys.argv[4])
from support.digits import trainer
from edge_train.training.run_folder import RunFolder
folder, rounds, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
rng = np.random.default_rng(11)
kills = finished = newest = 0
while True:
    last = kills == rounds  # left alone, it comes to its end
    child = os.fork()
    if child == 0:
        trainer(steps=steps, epochs=99, folder=folder, save_every=0).run()
        os._exit(0)
    if not last:
        time.sleep(rng.uniform(0.05, 0.6))
        os.kill(child, signal.SIGKILL)  # a process that has ended stays one until it is waited for
        kills += 1
    os.waitpid(child, 0)
    path, run, notes = RunFolder(folder).newest()
    assert notes == [], notes
    step = 0 if run is None else run.step
    assert step >= newest, (step, newest)
    newest = step
    if run is not None and run.finished:
        finished += 1
        os.rename(folder, f"{folder}-{finished}")
        newest = 0
    if last:
        break
print(finished)
"""


def _kill(folder: Path, rounds: int) -> int:
    tests = Path(__file__).parents[1]
    return int(succeed(run_python(_CHILD, folder, rounds, STEPS, tests, timeout=900)))


def _uninterrupted(folder: Path) -> dict[str, np.ndarray]:
    trainer(steps=STEPS, epochs=99, folder=folder).run()
    return final_weights(folder)


@pytest.mark.slow
def test_u040_u102_two_hundred_kills_lose_no_run(tmp_path: Path) -> None:
    expected = _uninterrupted(tmp_path / "whole")
    finished = _kill(tmp_path / "run", 200)
    assert finished >= 1
    for number in range(1, finished + 1):
        assert same(final_weights(tmp_path / f"run-{number}"), expected)
        assert not list((tmp_path / f"run-{number}").glob(".*.tmp"))


@pytest.mark.slow
def test_a_few_kills_lose_no_run(tmp_path: Path) -> None:
    expected = _uninterrupted(tmp_path / "whole")
    finished = _kill(tmp_path / "run", 5)
    assert same(final_weights(tmp_path / f"run-{finished}"), expected)
