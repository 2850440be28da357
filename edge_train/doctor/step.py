"""The doctor's training step: ``python -m edge_train.doctor.step`` prints what it measured."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from edge_train.api import CheckpointState, Module, Optimizer
from edge_train.kernels import native, select
from edge_train.session import thread_count
from edge_train.training.process import peak_bytes

_DEMO = Path(__file__).parents[1] / "demo"
_ROWS = 32


def measure() -> dict[str, Any]:
    """Loss of 32 digits before and after one step of AdamW, its time and the peak memory."""
    artifacts = _DEMO / "artifacts"
    state = CheckpointState.load_checkpoint(artifacts / "checkpoint")
    module = Module(artifacts / "training_model.onnx", state, artifacts / "eval_model.onnx")
    optimizer = Optimizer(artifacts / "optimizer_model.onnx", module)
    with np.load(_DEMO / "digits.npz") as data:
        x = (data["images"][:_ROWS].astype(np.float32) / 16.0)[:, None]
        labels = data["labels"][:_ROWS].astype(np.int64)
    before = float(np.asarray(module(x, labels)))
    optimizer.step()
    module.lazy_reset_grad()
    start = time.perf_counter()
    after = float(np.asarray(module(x, labels)))
    optimizer.step()
    elapsed = time.perf_counter() - start
    library = native.library_path()
    return {
        "before": before,
        "after": after,
        "milliseconds": elapsed * 1e3,
        "peak": peak_bytes(),
        "kernels": select().name,
        "library": library.name if library else None,
        "threads": thread_count(),
    }


if __name__ == "__main__":
    json.dump(measure(), sys.stdout)
