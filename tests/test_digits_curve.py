"""The demo's network learns along PyTorch's curve: same weights, batches and optimizer."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.zoo import GOLDEN

from edge_train import demo
from edge_train.api import CheckpointState, Module, Optimizer
from edge_train.graph import ir, onnx_codec
from edge_train.session import run_model

TORCH: dict[str, Any] = json.loads((GOLDEN / "digits_torch.json").read_text())
ARTIFACTS = demo.HERE / "artifacts"


def torch_adamw() -> bytes:
    """The demo's optimizer graph in the order of PyTorch's AdamW (adam_mode 0)."""
    model = onnx_codec.load(ARTIFACTS / "optimizer_model.onnx")
    nodes = []
    for node in model.graph.nodes:
        assert node.op_type == "AdamWOptimizer"
        values = {"adam_mode": 0, "epsilon": TORCH["eps"], "weight_decay": TORCH["weight_decay"]}
        assert node.attributes.keys() >= values.keys()
        changed = {key: ir.Attribute.of(key, value) for key, value in values.items()}
        nodes.append(replace(node, attributes={**node.attributes, **changed}))
    return onnx_codec.encode(replace(model, graph=replace(model.graph, nodes=nodes)))


def train(learning_rate: float, epochs: int) -> tuple[Module, list[float]]:
    """Epoch means of the loss."""
    state = CheckpointState.load_checkpoint(ARTIFACTS / "checkpoint")
    module = Module(ARTIFACTS / "training_model.onnx", state, ARTIFACTS / "eval_model.onnx")
    optimizer = Optimizer(torch_adamw(), module)
    optimizer.set_learning_rate(learning_rate)
    training, _ = demo.load_digits()
    rng = np.random.default_rng(TORCH["seed"])
    means = []
    for _ in range(epochs):
        losses = []
        for x, labels in training.batches(TORCH["batch"], rng):
            module.lazy_reset_grad()
            losses.append(float(module(x, labels)))
            optimizer.step()
        means.append(float(np.mean(losses)))
    return module, means


def test_batches_are_those_of_the_golden() -> None:
    training, _ = demo.load_digits()
    assert len(training.labels) == TORCH["training_images"]
    rng = np.random.default_rng(TORCH["seed"])
    firsts = [int(rng.permutation(len(training.labels))[0]) for _ in range(TORCH["epochs"])]
    assert firsts == TORCH["first_rows"]


def test_u082_the_loss_curve_is_pytorchs(tmp_path: Path) -> None:
    """U082: a CNN with BatchNorm learns: the curve within 1 % of PyTorch, and a floor."""
    module, losses = train(TORCH["learning_rate"], TORCH["epochs"])
    assert losses == pytest.approx(TORCH["losses"], rel=0.01)
    _, test = demo.load_digits()
    module.export_model_for_inferencing(tmp_path / "digits.onnx", ["logits"])
    answers = run_model(tmp_path / "digits.onnx", [test.x])[0].argmax(axis=1)
    accuracy = float(np.mean(answers == test.labels))
    assert accuracy >= 0.93
    assert accuracy == pytest.approx(TORCH["accuracy"], abs=0.01)


def test_a_slightly_other_rate_leaves_the_curve() -> None:
    """The measure can fail."""
    _, losses = train(1.1 * TORCH["learning_rate"], 1)
    assert losses != pytest.approx(TORCH["losses"][:1], rel=0.01)
