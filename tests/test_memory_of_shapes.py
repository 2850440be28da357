"""Case U084: batches of every size, one after the other, and onnxruntime's memory arena."""

from __future__ import annotations

import pytest
from support.child import MEMORY, run_python, succeed

CODE = (
    MEMORY
    + """
import sys
from pathlib import Path
import numpy as np
import edge_train.demo
from edge_train import session
from edge_train.api import CheckpointState, Module, Optimizer

options = session.default_options()
options.enable_cpu_mem_arena = "no arena" not in sys.argv[1]
options.enable_mem_pattern = "no pattern" not in sys.argv[1]
folder = Path(edge_train.demo.__file__).parent / "artifacts"
state = CheckpointState.load_checkpoint(folder / "checkpoint")
module = Module(folder / "training_model.onnx", state, session_options=options)
step = Optimizer(folder / "optimizer_model.onnx", module)
rng = np.random.default_rng(0)
known = [d if isinstance(d, int) else 1 for d in module.input_values()[0].dims[1:]]

def train(batch):
    images = rng.standard_normal((batch, *known)).astype(np.float32)
    module(images, rng.integers(0, 10, batch))
    step.step()
    module.lazy_reset_grad()

train(256)
largest = memory("VmRSS")
# every size once: onnxruntime keeps a memory pattern for each shape that it has seen
sizes = np.append(rng.permutation(np.arange(1, 257)), rng.integers(1, 257, 1744))
for count, batch in enumerate(sizes, 1):
    train(int(batch))
    if count == 300:
        early = memory("VmRSS")
train(1)
print(largest // 1024, early // 1024, memory("VmRSS") // 1024, memory("VmHWM") // 1024)
"""
)


@pytest.mark.slow
@pytest.mark.parametrize("options", ["default", "no arena", "no arena, no pattern"])
def test_memory_is_bounded_over_2000_random_batches(options: str) -> None:
    """MB of the process; one batch of 256 of this network has 8 MB of activations."""
    largest, early, late, peak = map(int, succeed(run_python(CODE, options)).split())
    print(f"{options}: largest batch first {largest}, after 300 {early}, 2000 {late}, peak {peak}")
    assert late < early + 16
    assert peak < largest + 40
