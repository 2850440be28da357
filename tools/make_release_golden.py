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
import types
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

# importing onnxruntime.training itself asks for torch, which on-device training does not need
_package = types.ModuleType("onnxruntime.training")
_package.__path__ = [str(Path(onnxruntime.__file__).parent / "training")]
sys.modules["onnxruntime.training"] = _package

STEPS = 3


def forward() -> onnx.ModelProto:
    rng = np.random.default_rng(7)
    shapes = {"w1": (4, 6), "b1": (6,), "w2": (6, 3), "b2": (3,)}
    weights = [
        numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32) / 2, name)
        for name, shape in shapes.items()
    ]
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["h"], name="first"),
        helper.make_node("Relu", ["h"], ["r"], name="relu"),
        helper.make_node("Gemm", ["r", "w2", "b2"], ["y"], name="second"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 3])
    graph = helper.make_graph(nodes, "mlp", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8)


def generate(folder: Path) -> None:
    artifacts = importlib.import_module("onnxruntime.training.artifacts")
    folder.mkdir(parents=True, exist_ok=True)
    artifacts.generate_artifacts(
        forward(),
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
    generate(Path(sys.argv[1]))
    train(Path(sys.argv[1]))
