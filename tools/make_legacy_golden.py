"""tests/golden/legacy, made by onnxruntime-training 1.14.1, which writes checkpoint folders.

    python3.9 -m venv venv && venv/bin/pip install --no-deps onnxruntime-training==1.14.1 \
        "numpy<1.25" onnx==1.13.1 protobuf==3.20.3 flatbuffers coloredlogs humanfriendly
    venv/bin/python tools/make_legacy_golden.py tests/golden/legacy

An MLP with a frozen layer: the folder as generated, artifacts, three steps, the folder after them.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
from release_model import STEPS, forward, without_torch

without_torch()
import onnxruntime.training.onnxblock as onnxblock  # noqa: E402
from onnxruntime.training import api  # noqa: E402


class WithLoss(onnxblock.TrainingModel):
    """The training graph: mean squared error, b1 frozen."""

    def __init__(self):
        super().__init__()
        self.loss = onnxblock.loss.MSELoss()
        self.requires_grad("b1", False)

    def build(self, output):
        return self.loss(output)


def generate(folder: Path) -> None:
    trainer = WithLoss()
    with onnxblock.onnx_model(forward()) as accessor:
        trainer("y")
        onnx.save(accessor.model, str(folder / "training_model.onnx"))
        onnx.save(accessor.eval_model, str(folder / "eval_model.onnx"))
    onnxblock.save_checkpoint(trainer.parameters(), str(folder / "checkpoint"))
    optimizer = onnxblock.optim.AdamW()
    with onnxblock.onnx_model() as accessor:
        optimizer(trainer.parameters())
        onnx.save(accessor.model, str(folder / "optimizer_model.onnx"))


def train(folder: Path) -> None:
    state = api.CheckpointState(str(folder / "checkpoint"))
    module = api.Module(str(folder / "training_model.onnx"), state, str(folder / "eval_model.onnx"))
    optimizer = api.Optimizer(str(folder / "optimizer_model.onnx"), module)
    rng = np.random.default_rng(8)
    x, target = (rng.standard_normal((5, width)).astype(np.float32) for width in (4, 3))
    losses = []
    for _ in range(STEPS):
        losses.append(module([x, target])[0])
        optimizer.step()
        module.lazy_reset_grad()
    module.save_checkpoint(str(folder / "trained"))
    np.savez_compressed(folder / "run.npz", x=x, target=target, losses=np.array(losses, np.float32))


if __name__ == "__main__":
    destination = Path(sys.argv[1])
    destination.mkdir(parents=True, exist_ok=True)
    generate(destination)
    train(destination)
