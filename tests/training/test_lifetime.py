"""Memory over a long run and over many runs: flat, and a dropped Trainer's is free at once."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pytest
from support.child import MEMORY, run_python, succeed
from support.digits import trainer

from edge_train.governor import Governor

_MANY_STEPS = (
    MEMORY
    + """
import sys
sys.path.insert(0, sys.argv[1])
from support.digits import trainer
seen = []
def note(record):
    if record.step % 1000 == 0:
        seen.append(memory("VmRSS"))
trainer(steps=10000, batch_size=16, folder=sys.argv[2], save_every=0.5, callbacks=[note]).run()
print(*seen)
"""
)
_MANY_RUNS = (
    MEMORY
    + """
import sys
sys.path.insert(0, sys.argv[1])
from support.digits import trainer
for number in range(100):
    options = {"batch_size": 8 + number % 17, "micro_batch": 5, "folder": sys.argv[2]}
    trainer(steps=2, fresh=True, **options).run()
    if number % 10 == 9:
        print(memory("VmRSS"))
"""
)
TESTS = Path(__file__).parents[1]


def test_a_dropped_trainer_leaves_nothing_behind(tmp_path: Path) -> None:
    gc.disable()
    try:
        made = trainer(steps=2, folder=tmp_path, governor=Governor())
        made.run()
        left = weakref.ref(made.module)
        del made
        assert left() is None
    finally:
        gc.enable()


@pytest.mark.slow
def test_u087_ten_thousand_steps_take_no_more_memory(tmp_path: Path) -> None:
    seen = list(map(int, succeed(run_python(_MANY_STEPS, TESTS, tmp_path)).split()))
    assert len(seen) == 10
    assert max(seen[3:]) - seen[2] < 2048  # kB


@pytest.mark.slow
def test_a_hundred_runs_in_one_process_take_no_more_memory(tmp_path: Path) -> None:
    seen = list(map(int, succeed(run_python(_MANY_RUNS, TESTS, tmp_path)).split()))
    assert len(seen) == 10
    assert max(seen[4:]) - seen[3] < 4096  # kB
