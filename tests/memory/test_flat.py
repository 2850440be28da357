"""Memory over many steps and rounds, with batches of every size; and that the measure works.

Counted are pages of the process's own: one of code that is run for the first time, late, is none.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.child import MEMORY, run_python, succeed

import edge_train.demo

ARTIFACTS = Path(edge_train.demo.__file__).parent / "artifacts"
#: glibc keeps freed memory back by thresholds that move: megabytes come and go without a leak
EXACT = {"MALLOC_TRIM_THRESHOLD_": "0"}

SETUP = (
    MEMORY
    + """
import sys
from pathlib import Path
import numpy as np
from edge_train.api import CheckpointState, Module, Optimizer
folder, count, leaks = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "leak"
rng = np.random.default_rng(0)
images = rng.random((64, 1, 8, 8), dtype=np.float32)
labels = rng.integers(0, 10, 64)
kept = []

def session():
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "training_model.onnx", state, folder / "eval_model.onnx")
    return module, Optimizer(folder / "optimizer_model.onnx", module)

def train(module, optimizer, parts):
    module.lazy_reset_grad()
    for _ in range(parts):
        rows = int(rng.integers(1, 65))
        module(images[:rows], labels[:rows])
    optimizer.step()
"""
)
STEPS = (
    SETUP
    + """
module, optimizer = session()
module.eval()(images, labels)  # the rare largest batch, at once
module.train()
for step in range(count):
    train(module, optimizer, 1 + step % 2)
    if step % 100 == 0:
        rows = int(rng.integers(1, 65))
        module.eval()(images[:rows], labels[:rows])
        module.train()
    if leaks:
        kept.append(np.ones(256))
    if step % 250 == 249:
        print(memory("RssAnon"))
"""
)
ROUNDS = (
    SETUP
    + """
for number in range(count):
    module, optimizer = session()
    for step in range(6):
        train(module, optimizer, 1 + step % 2)
    module.eval()(images, labels)
    CheckpointState.save_checkpoint(module.state, sys.argv[4])
    if leaks:
        kept.append(module.state)
    del module, optimizer
    print(memory("RssAnon"))
"""
)


def _growth(lines: str, warm: int) -> int:
    """kB from after the first ``warm`` measurements to the end; medians, for the noise."""
    values = [int(line) for line in lines.split()][warm:]
    tail = max(1, len(values) // 4)
    return int(np.median(values[-tail:]) - np.median(values[:tail]))


@pytest.mark.slow
def test_memory_stays_flat_over_ten_thousand_steps_of_random_batches() -> None:
    done = run_python(STEPS, ARTIFACTS, 10_000, "keep", env=EXACT)
    growth = _growth(succeed(done), warm=8)
    print(f"10,000 steps of 1 to 64 rows: {growth} kB more, {done.stdout.split()[-1]} kB in all")
    assert growth < 600, done.stdout.split()


@pytest.mark.slow
def test_the_measure_sees_two_kilobytes_a_step() -> None:
    done = run_python(STEPS, ARTIFACTS, 4000, "leak", env=EXACT)
    assert _growth(succeed(done), warm=8) > 600


@pytest.mark.slow
def test_memory_stays_flat_over_a_hundred_rounds_of_load_train_save_drop(tmp_path: Path) -> None:
    done = run_python(ROUNDS, ARTIFACTS, 100, "keep", tmp_path / "saved", env=EXACT)
    growth = _growth(succeed(done), warm=40)  # the heap settles by round 60
    print(f"100 rounds: {growth} kB more, {done.stdout.split()[-1]} kB in all")
    assert growth < 600, done.stdout.split()


@pytest.mark.slow
def test_the_measure_sees_a_state_that_is_kept(tmp_path: Path) -> None:
    done = run_python(ROUNDS, ARTIFACTS, 60, "leak", tmp_path / "saved", env=EXACT)
    assert _growth(succeed(done), warm=40) > 600
