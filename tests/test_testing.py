"""check_gradients, the public check of a model's gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edge_train.errors import ArtifactError, EdgeTrainError, UnsupportedOp
from edge_train.graph import ir
from edge_train.graph.gradients import RULES
from edge_train.testing import GradientMismatch, check_gradients


def model(
    *nodes: onnx.NodeProto, outputs: Sequence[str] = ("y",), opset: int = 17, **weights: np.ndarray
) -> onnx.ModelProto:
    """Nodes that read x (N, 4)."""
    return helper.make_model(
        helper.make_graph(
            nodes,
            "net",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
            [numpy_helper.from_array(value, name) for name, value in weights.items()],
        ),
        opset_imports=[helper.make_opsetid("", opset)],
        ir_version=8,
    )


@pytest.fixture
def weights(rng: np.random.Generator) -> dict[str, np.ndarray]:
    shapes = {"w": (4, 5), "b": (5,), "v": (5, 3)}
    return {name: rng.standard_normal(s).astype(np.float32) for name, s in shapes.items()}


def mlp(activation: str, weights: dict[str, np.ndarray]) -> onnx.ModelProto:
    return model(
        helper.make_node("Gemm", ["x", "w", "b"], ["h"]),
        helper.make_node(activation, ["h"], ["a"]),
        helper.make_node("MatMul", ["a", "v"], ["y"]),
        **weights,
    )


def test_right_gradients(weights: dict[str, np.ndarray]) -> None:
    report = check_gradients(mlp("Tanh", weights))
    assert [check.name for check in report.parameters] == ["w", "b", "v"]
    assert [check.shape for check in report.parameters] == [(4, 5), (5,), (5, 3)]
    assert max(check.error for check in report.parameters) < 1e-5
    assert report.evaluated_by == "onnxruntime in double"
    assert not report.wrong
    assert "right" in str(report)


def test_a_slope_of_zero_is_right(weights: dict[str, np.ndarray]) -> None:
    """A bias before a normalisation changes nothing: what float32 leaves of it is no error."""
    normalized = model(
        helper.make_node("Gemm", ["x", "w", "b"], ["h"]),
        helper.make_node("BatchNormalization", ["h", *"smtu"], ["y", "", ""], training_mode=1),
        **{name: weights[name] for name in "wb"},
        **dict.fromkeys("smtu", np.ones(5, np.float32)),
    )
    (check,) = check_gradients(normalized, parameters=["b"]).parameters
    assert max(map(abs, check.by_gradient)) < 1e-6


def test_a_wrong_gradient_is_named(
    weights: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(RULES, ("", "Tanh"), RULES["", "Sigmoid"])
    with pytest.raises(GradientMismatch, match=r"'w' .*'b' ") as caught:
        check_gradients(mlp("Tanh", weights))
    assert isinstance(caught.value, EdgeTrainError)
    assert isinstance(caught.value, AssertionError)
    assert [check.name for check in caught.value.report.wrong] == ["w", "b"]
    assert "WRONG" in str(caught.value.report)


def test_a_slightly_wrong_gradient_is_found(
    weights: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = RULES["", "Tanh"]

    def scaled(g, node: ir.Node, dy: str) -> str:  # type: ignore[no-untyped-def]
        return g.mul(entry.rule(g, node, dy), 1.003)

    monkeypatch.setitem(RULES, ("", "Tanh"), replace(entry, rule=scaled))
    with pytest.raises(GradientMismatch):
        check_gradients(mlp("Tanh", weights))
    assert not check_gradients(mlp("Tanh", weights), tolerance=0.01).wrong


def test_ops_without_double_kernels(weights: dict[str, np.ndarray]) -> None:
    report = check_gradients(mlp("Selu", weights))
    assert report.evaluated_by == "onnx.reference in double"


def test_kinks_do_no_harm(weights: dict[str, np.ndarray]) -> None:
    inputs = {"x": np.random.default_rng(1).standard_normal((64, 4))}
    assert not check_gradients(mlp("Relu", weights), inputs, directions=8).wrong


def test_path_and_bytes(weights: dict[str, np.ndarray], tmp_path: Path) -> None:
    data = mlp("Tanh", weights).SerializeToString()
    (tmp_path / "net.onnx").write_bytes(data)
    reports = [check_gradients(source) for source in (data, tmp_path / "net.onnx")]
    assert reports[0] == reports[1]


def test_named_parameters_only(weights: dict[str, np.ndarray]) -> None:
    report = check_gradients(mlp("Tanh", weights), parameters=["v"])
    assert [check.name for check in report.parameters] == ["v"]


def test_own_loss(weights: dict[str, np.ndarray]) -> None:
    nodes = list(mlp("Tanh", weights).graph.node)
    nodes.append(helper.make_node("ReduceLogSumExp", ["y"], ["loss"], keepdims=0))
    report = check_gradients(model(*nodes, outputs=["y", "loss"], **weights), loss="loss")
    assert report.loss > 0
    assert len(report.parameters) == 3


def test_parameters_out_of_reach(weights: dict[str, np.ndarray]) -> None:
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["y"]),
        helper.make_node("MatMul", ["y", "v"], ["z"]),
        helper.make_node("ReduceSum", ["y"], ["loss"], keepdims=0),
    ]
    report = check_gradients(model(*nodes, outputs=["z", "loss"], **weights), loss="loss")
    assert report.unreached == ("v",)


def test_dropout_is_switched_off(weights: dict[str, np.ndarray]) -> None:
    for opset, attributes in ((10, {"ratio": 0.5}), (13, {})):
        nodes = [
            helper.make_node("MatMul", ["x", "w"], ["h"]),
            helper.make_node("Dropout", ["h"], ["d"], **attributes),
            helper.make_node("MatMul", ["d", "v"], ["y"]),
        ]
        assert not check_gradients(model(*nodes, opset=opset, **weights)).wrong


def test_batch_norm_is_checked_in_training_mode(weights: dict[str, np.ndarray]) -> None:
    names = ["scale", "shift", "mean", "var"]
    four = {name: np.full(5, 0.5, np.float32) for name in names}
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["h"]),
        helper.make_node("BatchNormalization", ["h", *names], ["y"]),
    ]
    inputs = {"x": np.random.default_rng(2).standard_normal((8, 4))}
    report = check_gradients(model(*nodes, **four, **weights), inputs)
    checked = {check.name for check in report.parameters}
    assert checked == {"w", "b", "scale", "shift"}  # b has no slope at all: only rounding


def test_random_losses_are_refused(weights: dict[str, np.ndarray]) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("RandomNormalLike", ["h"], ["noise"]),
        helper.make_node("Mul", ["h", "noise"], ["y"]),
    ]
    with pytest.raises(ArtifactError, match="a random node has no slope"):
        check_gradients(model(*nodes, **weights))


def test_quantised_models_are_refused(weights: dict[str, np.ndarray]) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("QuantizeLinear", ["h", "scale"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "scale"], ["y"]),
    ]
    scale = np.array(0.1, np.float32)
    with pytest.raises(ArtifactError, match="straight-through"):
        check_gradients(model(*nodes, scale=scale, **weights), parameters=["w"])


def test_wrong_arguments(weights: dict[str, np.ndarray]) -> None:
    net = mlp("Tanh", weights)
    with pytest.raises(ValueError, match="wv"):
        check_gradients(net, parameters=["wv"])
    with pytest.raises(ValueError, match=r"the model has no \['z'\]"):
        check_gradients(net, {"z": np.zeros(3)})
    with pytest.raises(ValueError, match="no node makes 'cost'"):
        check_gradients(net, loss="cost")
    with pytest.raises(ArtifactError, match="expected one number"):
        check_gradients(net, loss="y")
    with pytest.raises(UnsupportedOp, match="Round"):
        check_gradients(mlp("Round", weights))


def test_half_precision_models(weights: dict[str, np.ndarray]) -> None:
    """Checked in float32: the rules are the same."""
    net = mlp("Tanh", {name: value.astype(np.float16) for name, value in weights.items()})
    net.graph.input[0].type.tensor_type.elem_type = TensorProto.FLOAT16
    net.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT16
    assert not check_gradients(net).wrong


@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
def test_a_form_without_gradient_is_refused_by_name(op: str, rng: np.random.Generator) -> None:
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op]
    weights = {"w": rng.random((1, gates * 2, 3)), "r": rng.random((1, gates * 2, 2))}
    node = helper.make_node(op, ["x", "w", "r"], ["y"], "rnn", hidden_size=2, layout=1)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, 4, 3))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (2, 4, 1, 2))],
        [numpy_helper.from_array(v.astype(np.float32), name) for name, v in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(UnsupportedOp, match=r"'rnn'.*layout"):
        check_gradients(model.SerializeToString())
