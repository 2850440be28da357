"""Networks that users brought and the reference refused: each generated, trained, or refused in
words (cases U010 to U018)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from edge_train import artifacts
from edge_train.api import CheckpointState, Module, Optimizer
from edge_train.errors import UnsupportedOp
from edge_train.testing import check_gradients

Shape = tuple[int | str, ...]


def _model(
    nodes: list[Any],
    weights: dict[str, np.ndarray],
    x: Shape,
    y: Shape,
    opset: int = 17,
    kind: int = TensorProto.FLOAT,
) -> bytes:
    graph = helper.make_graph(
        nodes,
        "case",
        [helper.make_tensor_value_info("x", kind, x)],
        [helper.make_tensor_value_info("y", kind, y)],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    return bytes(model.SerializeToString())


def _normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return (0.5 * rng.standard_normal(shape)).astype(np.float32)


def _losses(
    model: bytes, folder: Path, x: np.ndarray, target: np.ndarray, *, loss: Any = None
) -> list[float]:
    """Ten AdamW steps on one batch."""
    artifacts.generate_artifacts(
        model,
        loss=loss or artifacts.LossType.MSELoss,
        optimizer=artifacts.OptimType.AdamW,
        artifact_directory=folder,
    )
    module = Module(
        folder / "training_model.onnx",
        CheckpointState.load_checkpoint(folder / "checkpoint"),
        folder / "eval_model.onnx",
    )
    optimizer = Optimizer(folder / "optimizer_model.onnx", module)
    optimizer.set_learning_rate(0.01)
    losses = []
    for _ in range(10):
        module.lazy_reset_grad()
        losses.append(float(module(x, target)))
        assert optimizer.step()
    losses.append(float(module.eval()(x, target)))
    return losses


def _check(model: bytes, x: np.ndarray, target: np.ndarray, folder: Path, **options: Any) -> None:
    """It trains, and its gradients are the slopes of its output."""
    losses = _losses(model, folder, x, target, **options)
    assert losses[-1] < losses[0], losses
    check_gradients(model, {"x": x})


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_u010_up_sampling(mode: str, tmp_path: Path, rng: np.random.Generator) -> None:
    weights = {"w1": _normal(rng, 3, 2, 3, 3), "w2": _normal(rng, 2, 3, 3, 3)}
    scales = {"scales": np.array([1, 1, 2, 2], np.float32)}
    pads = {"kernel_shape": [3, 3], "pads": [1] * 4}
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], "down", **pads),
        helper.make_node("Resize", ["a", "", "scales"], ["b"], "up", mode=mode),
        helper.make_node("Conv", ["b", "w2"], ["y"], "last", **pads),
    ]
    model = _model(nodes, weights | scales, ("n", 2, 5, 4), ("n", 2, 10, 8))
    _check(model, _normal(rng, 2, 2, 5, 4), _normal(rng, 2, 2, 10, 8), tmp_path)


def test_u011_an_auto_encoder_with_a_transposed_convolution(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    weights = {"w1": _normal(rng, 4, 2, 3, 3), "w2": _normal(rng, 4, 2, 4, 4)}
    nodes = [
        helper.make_node(
            "Conv", ["x", "w1"], ["a"], "down", kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4
        ),
        helper.make_node("Tanh", ["a"], ["b"], "act"),
        helper.make_node("ConvTranspose", ["b", "w2"], ["y"], "up", strides=[2, 2], pads=[1] * 4),
    ]
    model = _model(nodes, weights, ("n", 2, 8, 8), ("n", 2, 8, 8))
    x = _normal(rng, 3, 2, 8, 8)
    _check(model, x, x, tmp_path)


@pytest.mark.parametrize("op", ["ReduceMax", "ReduceMin"])
def test_u012_extremes_over_an_axis(op: str, tmp_path: Path, rng: np.random.Generator) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], "fc"),
        helper.make_node(op, ["a"], ["y"], "extreme", axes=[1], keepdims=0),
    ]
    model = _model(nodes, {"w": _normal(rng, 4, 5)}, ("n", 4), ("n",))
    _check(model, _normal(rng, 6, 4), _normal(rng, 6), tmp_path)


def test_u012_ties_share_the_gradient(tmp_path: Path) -> None:
    """As PyTorch's amax: each of k equal extremes gets 1/k."""
    nodes = [
        helper.make_node("Add", ["x", "w"], ["a"], "sum"),
        helper.make_node("ReduceMax", ["a"], ["y"], "extreme", keepdims=0),
    ]
    model = _model(nodes, {"w": np.zeros(4, np.float32)}, (4,), ())
    artifacts.generate_artifacts(model, artifact_directory=tmp_path)
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    Module(tmp_path / "training_model.onnx", state)(np.array([1, 3, 3, 2], np.float32))
    np.testing.assert_array_equal(state.parameters["w"].grad, np.float32([0, 0.5, 0.5, 0]))


def test_u013_atan(tmp_path: Path, rng: np.random.Generator) -> None:
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["a"], "fc"),
        helper.make_node("Atan", ["a"], ["y"], "act"),
    ]
    weights = {"w": _normal(rng, 4, 3), "b": _normal(rng, 3)}
    model = _model(nodes, weights, ("n", 4), ("n", 3))
    _check(model, _normal(rng, 5, 4), _normal(rng, 5, 3), tmp_path)


def test_u015_round_is_refused_by_name(tmp_path: Path, rng: np.random.Generator) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], "fc"),
        helper.make_node("Round", ["a"], ["y"], "quantise"),
    ]
    model = _model(nodes, {"w": _normal(rng, 4, 3)}, ("n", 4), ("n", 3))
    with pytest.raises(UnsupportedOp, match=r"Round 'quantise'.*QuantizeLinear") as refused:
        artifacts.generate_artifacts(
            model, loss=artifacts.LossType.MSELoss, artifact_directory=tmp_path
        )
    assert "1 problem" in str(refused.value)
    assert not list(tmp_path.iterdir())


def test_u017_layer_norm_with_one_output(tmp_path: Path, rng: np.random.Generator) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], "fc"),
        helper.make_node("LayerNormalization", ["a", "g", "b"], ["y"], "norm"),
    ]
    weights = {"w": _normal(rng, 4, 5), "g": np.ones(5, np.float32), "b": _normal(rng, 5)}
    model = _model(nodes, weights, ("n", 4), ("n", 5))
    _check(model, _normal(rng, 6, 4), _normal(rng, 6, 5), tmp_path)


def test_u017_dropout_without_a_mask(tmp_path: Path, rng: np.random.Generator) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], "fc"),
        helper.make_node("Dropout", ["a"], ["y"], "drop"),
    ]
    model = _model(nodes, {"w": _normal(rng, 8, 16)}, ("n", 8), ("n", 16))
    losses = _losses(model, tmp_path, _normal(rng, 32, 8), np.zeros((32, 16), np.float32))
    # Dropout makes the training losses jump about; the eval graph has none
    assert losses[-1] < np.mean(losses[:3])


def test_u017_cross_entropy_of_three_dimensional_logits(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], "conv", kernel_shape=[1])]
    model = _model(nodes, {"w": _normal(rng, 5, 3, 1)}, ("n", 3, "t"), ("n", 5, "t"))
    labels = rng.integers(0, 5, (2, 7))
    loss = artifacts.LossType.CrossEntropyLoss
    losses = _losses(model, tmp_path, _normal(rng, 2, 3, 7), labels, loss=loss)
    assert losses[-1] < losses[0]


def _with_fused_node(rng: np.random.Generator) -> bytes:
    """A graph as an inference optimizer leaves it: a quantized product in front of a plain one."""
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"], "quantise"),
        helper.make_node("MatMulInteger", ["q", "wq", "z"], ["i"], "product"),
        helper.make_node("Cast", ["i"], ["f"], "cast", to=TensorProto.FLOAT),
        helper.make_node("Mul", ["f", "s"], ["a"], "scale"),
        helper.make_node("MatMul", ["a", "head"], ["y"], "classifier"),
    ]
    weights = {
        "wq": rng.integers(0, 255, (4, 6)).astype(np.uint8),
        "head": _normal(rng, 6, 3),
    }
    return _model(nodes, weights, ("n", 4), ("n", 3))


def test_u018_frozen_parts_may_keep_fused_nodes(tmp_path: Path, rng: np.random.Generator) -> None:
    losses = _losses(_with_fused_node(rng), tmp_path, _normal(rng, 6, 4), _normal(rng, 6, 3))
    assert losses[-1] < losses[0]


def test_u018_fused_nodes_on_the_path_say_export_again(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], "fc"),
        helper.make_node(
            "MatMulNBits", ["a", "b", "scales"], ["y"], "quantized", domain="com.microsoft",
            K=16, N=3, bits=4, block_size=16,
        ),
    ]  # fmt: skip
    weights = {
        "w": _normal(rng, 4, 16),
        "b": np.zeros((3, 1, 8), np.uint8),
        "scales": np.ones(3, np.float32),
    }
    model = _model(nodes, weights, ("n", 4), ("n", 3))
    with pytest.raises(UnsupportedOp, match=r"MatMulNBits 'quantized'.*export the model again"):
        artifacts.generate_artifacts(
            model, ["w"], loss=artifacts.LossType.MSELoss, artifact_directory=tmp_path
        )


@pytest.mark.parametrize(
    "op", ["LeakyRelu", "Elu", "Selu", "Softplus", "Mish", "HardSwish", "Atan", "Tan", "Cosh"]
)
def test_a_model_in_double_with_ops_that_onnxruntime_has_for_float32_only(
    op: str, tmp_path: Path, rng: np.random.Generator
) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], "fc"),
        helper.make_node(op, ["a"], ["y"], "act"),
    ]
    weights = {"w": _normal(rng, 4, 3).astype(np.float64)}
    model = _model(nodes, weights, ("n", 4), ("n", 3), opset=18, kind=TensorProto.DOUBLE)
    x, target = (_normal(rng, 6, width).astype(np.float64) for width in (4, 3))
    losses = _losses(model, tmp_path, x, target)
    assert losses[-1] < losses[0], losses


@pytest.mark.parametrize("wanted", [0, 1, 2])
def test_a_split_of_which_one_part_is_read(
    wanted: int, tmp_path: Path, rng: np.random.Generator
) -> None:
    """Stock onnxruntime ends the process where the parts before it are left out."""
    parts = ["y" if index == wanted else "" for index in range(3)]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], "fc"),
        helper.make_node("Split", ["a", "sizes"], parts, "split", axis=1),
    ]
    weights = {"w": _normal(rng, 4, 6), "sizes": np.array([2, 2, 2], np.int64)}
    model = _model(nodes, weights, ("n", 4), ("n", 2))
    _check(model, _normal(rng, 5, 4), _normal(rng, 5, 2), tmp_path)
