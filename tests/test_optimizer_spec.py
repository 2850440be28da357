"""What is read from optimizer_model.onnx, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import helper
from support import optimizer_graphs as graphs
from support.zoo import ZOO, Case

from edge_train.errors import ArtifactError, UnsupportedOp
from edge_train.optimizer_spec import OptimizerSpec, read_spec


def f32(value: float) -> float:
    return float(np.float32(value))


@pytest.mark.parametrize("case", ZOO.values(), ids=ZOO.keys())
def test_every_artifact_of_the_zoo_is_adamw_with_the_generators_defaults(case: Case) -> None:
    assert read_spec(case.optimizer_model) == OptimizerSpec(
        "AdamWOptimizer", None, 1, True, (f32(0.9), f32(0.999)), f32(1e-6), 0.0
    )


def test_absent_attributes_take_the_operators_defaults() -> None:
    spec = read_spec(graphs.adamw())
    assert spec == OptimizerSpec(
        "AdamWOptimizer", None, 0, True, (f32(0.9), f32(0.999)), f32(1e-8), f32(0.01)
    )


def test_sgd_and_clipping() -> None:
    assert read_spec(graphs.sgd()).max_grad_norm is None
    spec = read_spec(graphs.sgd(max_norm=0.3))
    assert (spec.op_type, spec.max_grad_norm, spec.moments) == ("SGDOptimizerV2", f32(0.3), 1)
    spec = read_spec(graphs.adamw(max_norm=2.5, adam_mode=1, correct_bias=0))
    assert (spec.max_grad_norm, spec.mode, spec.correct_bias, spec.moments) == (2.5, 1, False, 2)


def test_a_file_is_read_by_path(tmp_path: Path) -> None:
    path = tmp_path / "optimizer_model.onnx"
    path.write_bytes(graphs.sgd())
    assert read_spec(path) == read_spec(str(path)) == read_spec(graphs.sgd())
    with pytest.raises(FileNotFoundError):
        read_spec(tmp_path / "missing.onnx")


ADAMW_INPUTS = ["learning_rate", "step", "params", "gradients", *graphs.MOMENTS]
SEQUENCES = ["params", "gradients", *graphs.MOMENTS]


def _other(op: str) -> bytes:
    return graphs.build([graphs.node(op, ADAMW_INPUTS, "flag")], SEQUENCES)


def _two() -> bytes:
    nodes = [graphs.node("AdamWOptimizer", ADAMW_INPUTS, name) for name in ("flag", "second")]
    return graphs.build(nodes, SEQUENCES)


def _onnx_domain() -> bytes:
    return graphs.build([helper.make_node("AdamWOptimizer", ADAMW_INPUTS, ["flag"])], SEQUENCES)


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (_other("LambOptimizer"), "LambOptimizer 'onnx::LambOptimizer::1'"),
        (_two(), "AdamWOptimizer.*AdamWOptimizer"),
        (_onnx_domain(), r"domain 'ai\.onnx'"),
        (graphs.build([], SEQUENCES), "has no nodes"),
    ],
)
def test_other_optimizers_are_refused_with_their_nodes(model: bytes, text: str) -> None:
    with pytest.raises(UnsupportedOp, match=text):
        read_spec(model)


def test_a_training_model_is_refused(zoo: dict[str, Case]) -> None:
    with pytest.raises(UnsupportedOp, match=r"training_model\.onnx' has .*Gemm"):
        read_spec(zoo["mlp_MSELoss"].training_model)


@pytest.mark.parametrize(
    ("attributes", "text"),
    [
        ({"adam_mode": 0, "correct_bias": 0}, "adam_mode 0 with correct_bias 0"),
        ({"adam_mode": 2}, "adam_mode 2"),
    ],
)
def test_modes_that_are_not_defined_are_refused(attributes: dict[str, int], text: str) -> None:
    with pytest.raises(ArtifactError, match=text):
        read_spec(graphs.adamw(**attributes))


def _swapped() -> bytes:
    inputs = [*ADAMW_INPUTS[:4], *reversed(graphs.MOMENTS)]
    return graphs.build([graphs.node("AdamWOptimizer", inputs, "flag")], SEQUENCES)


def _with_signal() -> bytes:
    inputs = [*ADAMW_INPUTS, "signal"]
    return graphs.build([graphs.node("AdamWOptimizer", inputs, "flag")], [*SEQUENCES, "signal"])


def _clip_beside() -> bytes:
    clip = graphs.node("InplaceClipGradNorm", ["gradients"], "clipped")
    return graphs.build([clip, graphs.node("AdamWOptimizer", ADAMW_INPUTS, "flag")], SEQUENCES)


@pytest.mark.parametrize("model", [_swapped(), _with_signal(), _clip_beside()])
def test_other_connections_are_refused(model: bytes) -> None:
    with pytest.raises(ArtifactError, match=r"has the inputs .*; expected learning_rate"):
        read_spec(model)


def test_the_order_of_the_graphs_inputs_is_checked() -> None:
    update = graphs.node("AdamWOptimizer", ADAMW_INPUTS, "flag")
    with pytest.raises(ArtifactError, match=r"has the inputs .*gradients, params"):
        read_spec(graphs.build([update], ["gradients", "params", *graphs.MOMENTS]))


def test_another_norm_is_refused() -> None:
    clip = graphs.node("InplaceClipGradNorm", ["gradients"], "clipped", norm_type="max")
    inputs = ["learning_rate", "params", "clipped"]
    model = graphs.build([clip, graphs.node("SGDOptimizerV2", inputs, "flag")], SEQUENCES[:3])
    with pytest.raises(UnsupportedOp, match="norm_type 'max'"):
        read_spec(model)
