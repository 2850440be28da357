"""tests/golden/releases, made by onnxruntime-training 1.15.1 and 1.16.3.

1.15 is the last release with checkpoint folders, 1.16 and 1.17 write files of version 1.

    pip install --no-deps --target ort onnxruntime-training==1.16.3
    PYTHONPATH=ort python tools/make_release_golden.py tests/golden/releases/1.16.3

in an environment of Python 3.11 with onnx 1.16.2 and NumPy 1.26: artifacts of an MLP with a frozen
layer, three steps, the checkpoint after them with the optimizer's state.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import numpy as np
import onnx
from release_model import STEPS, forward, without_torch


def generate(folder: Path) -> None:
    artifacts = importlib.import_module("onnxruntime.training.artifacts")
    folder.mkdir(parents=True, exist_ok=True)
    artifacts.generate_artifacts(
        forward(("first", "relu", "second")),
        requires_grad=["w1", "w2", "b2"],
        frozen_params=["b1"],
        loss=artifacts.LossType.MSELoss,
        optimizer=artifacts.OptimType.AdamW,
        artifact_directory=str(folder),
    )
    # the installed onnx stamps its own versions, which these releases do not load
    path = folder / "optimizer_model.onnx"
    model = onnx.load(path)
    model.ir_version = 8
    for item in model.opset_import:
        item.version = 15 if item.domain == "" else item.version
    onnx.save(model, path)


def train(folder: Path) -> None:
    api = importlib.import_module("onnxruntime.training.api")
    state = api.CheckpointState.load_checkpoint(str(folder / "checkpoint"))
    models = [str(folder / f"{kind}_model.onnx") for kind in ("training", "eval", "optimizer")]
    module = api.Module(models[0], state, models[1])
    optimizer = api.Optimizer(models[2], module)
    rng = np.random.default_rng(8)
    x, target = (rng.standard_normal((5, n)).astype(np.float32) for n in (4, 3))
    module.train()
    losses = []
    for _ in range(STEPS):
        losses.append(np.asarray(module(x, target)).item())
        optimizer.step()
        module.lazy_reset_grad()
    api.CheckpointState.save_checkpoint(state, str(folder / "trained"), True)
    np.savez(folder / "run.npz", x=x, target=target, losses=np.array(losses, np.float32))


if __name__ == "__main__":
    without_torch()
    generate(Path(sys.argv[1]))
    train(Path(sys.argv[1]))
