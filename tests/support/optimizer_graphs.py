"""Optimizer graphs as generate_artifacts writes them, and a Module of fixed gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper

from edge_train.arena import Arena
from edge_train.checkpoint.state import CheckpointState

MOMENTS = ["first_order_moments", "second_order_moments"]


def build(nodes: list[NodeProto], inputs: list[str]) -> bytes:
    """A model with the given sequence inputs after learning_rate and step."""
    sequences = [helper.make_tensor_sequence_value_info(n, TensorProto.FLOAT, None) for n in inputs]
    graph = helper.make_graph(
        nodes,
        "optimizer",
        [
            helper.make_tensor_value_info("learning_rate", TensorProto.FLOAT, [1]),
            helper.make_tensor_value_info("step", TensorProto.INT64, [1]),
            *sequences,
        ],
        [helper.make_tensor_value_info("flag", TensorProto.BOOL, [1])],
    )
    opsets = [helper.make_opsetid("com.microsoft", 1), helper.make_opsetid("", 15)]
    model: ModelProto = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return model.SerializeToString()


def node(op: str, inputs: list[str], output: str, **attributes: Any) -> NodeProto:
    return helper.make_node(
        op, inputs, [output], name=f"onnx::{op}::1", domain="com.microsoft", **attributes
    )


def _clip(max_norm: float | None) -> tuple[list[NodeProto], str]:
    if max_norm is None:
        return [], "gradients"
    return [node("InplaceClipGradNorm", ["gradients"], "clipped", max_norm=max_norm)], "clipped"


def adamw(max_norm: float | None = None, **attributes: Any) -> bytes:
    clip, gradients = _clip(max_norm)
    inputs = ["learning_rate", "step", "params", gradients, *MOMENTS]
    update = node("AdamWOptimizer", inputs, "flag", **attributes)
    return build([*clip, update], ["params", "gradients", *MOMENTS])


def sgd(max_norm: float | None = None) -> bytes:
    clip, gradients = _clip(max_norm)
    update = node("SGDOptimizerV2", ["learning_rate", "params", gradients], "flag")
    return build([*clip, update], ["params", "gradients", MOMENTS[0]])


class FakeModule:
    """What an Optimizer needs of a Module; ``fill`` makes the gradients of a step."""

    def __init__(self, state: CheckpointState | None = None, arena: Arena | None = None) -> None:
        self.state = state or CheckpointState()
        self.arena = arena or Arena([("w", (2, 3)), ("b", (3,))])
        self.loss_is_finite = True

    def fill(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.arena.gradients[...] = rng.standard_normal(self.arena.size)
