"""Losses beside PyTorch's (tests/golden/losses_torch.npz, made by tools/make_torch_losses.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from support.generated import generate
from support.offsets import offset_model
from support.training import module_of
from support.zoo import GOLDEN

from edge_train import onnxblock
from edge_train.errors import ArtifactError, ShapeMismatch

Arrays = dict[str, NDArray[Any]]


def _stored() -> tuple[list[tuple[str, dict[str, Any]]], Arrays]:
    with np.load(GOLDEN / "losses_torch.npz") as stored:
        arrays = {name: stored[name] for name in stored.files}
    return [(name, options) for name, options in json.loads(str(arrays["table"]))], arrays


TABLE, ARRAYS = _stored()
IDS = [f"{name}-{'-'.join(str(v) for v in options.values())}" for name, options in TABLE]
#: relative to the value, and to the gradient's norm
TOLERANCE = 2e-6


def run(
    loss: onnxblock.Block, x: NDArray[Any], feed: Arrays, folder: Path, **options: Any
) -> tuple[float, NDArray[Any]]:
    """The loss at y = x and its gradient."""
    made = generate(offset_model(x, **options), folder, loss=loss)
    module = module_of(made)
    fed = {"z": np.zeros_like(x), **feed}
    fed = {name: fed[name] for name in module.input_names()}
    value = float(module(**fed))
    assert float(module.eval()(**fed)) == pytest.approx(value, rel=1e-6)
    gradient = module.state.parameters["p"].grad
    assert gradient is not None
    return value, np.array(gradient)


class CTCOfLogits(onnxblock.Block):
    def __init__(self, **options: Any) -> None:
        self.loss = onnxblock.loss.CTCLoss(**options)

    def build(self, logits: str) -> str:
        log_probs = onnxblock._graph_utils.generate_graph_name("log_probs")
        node = helper.make_node("LogSoftmax", [logits], [log_probs], "log_softmax", axis=-1)
        self.base.graph.node.append(node)
        return str(self.loss(log_probs))


def case(index: int) -> tuple[onnxblock.Block, NDArray[Any], Arrays]:
    name, options = TABLE[index]
    prefix = f"{index}.feed."
    feed = {key[len(prefix) :]: v for key, v in ARRAYS.items() if key.startswith(prefix)}
    feed = {n: v.astype(np.float32) if v.dtype.kind == "f" else v for n, v in feed.items()}
    make = CTCOfLogits if name == "CTCLoss" else getattr(onnxblock.loss, name)
    return make(**options), ARRAYS[f"{index}.x"], feed


def check(index: int, folder: Path, scale: float = 1.0, **options: Any) -> None:
    loss, x, feed = case(index)
    value, gradient = run(loss, x, feed, folder, **options)
    wanted = float(ARRAYS[f"{index}.loss"]) * scale
    assert abs(value - wanted) <= TOLERANCE * abs(wanted)
    expected = ARRAYS[f"{index}.grad"]
    error = np.linalg.norm(gradient - expected) / np.linalg.norm(expected)
    assert error <= TOLERANCE


def first_of_each() -> list[int]:
    seen: dict[str, int] = {}
    for index, (name, _) in enumerate(TABLE):
        seen.setdefault(name, index)
    return list(seen.values())


@pytest.mark.parametrize("index", first_of_each(), ids=lambda index: TABLE[index][0])
def test_each_loss_is_pytorchs(index: int, tmp_path: Path) -> None:
    check(index, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("index", range(len(TABLE)), ids=IDS)
def test_every_option_is_pytorchs(index: int, tmp_path: Path) -> None:
    check(index, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("index", range(len(TABLE)), ids=IDS)
def test_every_option_with_sizes_unknown(index: int, tmp_path: Path) -> None:
    check(index, tmp_path, symbols=True)


@pytest.mark.parametrize("opset", [13, 18, 21, 22])
def test_reductions_as_each_opset_writes_them(opset: int, tmp_path: Path) -> None:
    smoothed = [i for i, (_, options) in enumerate(TABLE) if options.get("label_smoothing")]
    check(smoothed[0], tmp_path, opset=opset)


def test_the_comparison_can_fail(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        check(0, tmp_path, scale=1 + 3 * TOLERANCE)


def test_binary_cross_entropy_of_any_logit_is_finite(tmp_path: Path) -> None:
    logits = np.array([0.0, 17, -17, 100, -100, 1e4, -1e4], np.float32)
    x, target = (np.ravel(v) for v in np.meshgrid(logits, np.float32([0, 0.5, 1])))
    loss = onnxblock.loss.BCEWithLogitsLoss(reduction="sum")
    value, gradient = run(loss, x, {"target": target}, tmp_path)
    soft = np.logaddexp(0, x.astype(np.float64))
    assert value == pytest.approx(np.sum(target * (soft - x) + (1 - target) * soft), rel=1e-6)
    np.testing.assert_allclose(gradient, 0.5 * (1 + np.tanh(x / 2)) - target, atol=1e-6)


def test_binary_cross_entropy_in_double(tmp_path: Path) -> None:
    """onnxruntime has no Softplus in double."""
    values = [helper.make_tensor_value_info(name, TensorProto.DOUBLE, ["N", 2]) for name in "xy"]
    weight = numpy_helper.from_array(np.array([[0.5, -1], [0.0, 2]]), "w")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], [weight])
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    module = module_of(generate(model, tmp_path, loss=onnxblock.loss.BCEWithLogitsLoss()))
    x, target = np.array([[1.0, -2], [0, 0]]), np.array([[0.0, 1], [1, 0]])
    y = x @ np.array([[0.5, -1], [0.0, 2]])
    assert module(x, target) == pytest.approx(np.mean(np.logaddexp(0, y) - target * y), rel=1e-6)
    slopes = x.T @ ((0.5 * (1 + np.tanh(y / 2)) - target) / 4)
    np.testing.assert_allclose(module.state.parameters["w"].grad, slopes, atol=1e-6)


@pytest.mark.parametrize("reduction", ["average", "", None])
@pytest.mark.parametrize("name", sorted({name for name, _ in TABLE}))
def test_an_unknown_reduction(name: str, reduction: Any) -> None:
    with pytest.raises(ValueError, match="has the reductions"):
        getattr(onnxblock.loss, name)(reduction=reduction)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: onnxblock.loss.CrossEntropyLoss(label_smoothing=1.5), "label_smoothing"),
        (lambda: onnxblock.loss.CrossEntropyLoss(weight=[1.0, np.nan]), "not finite"),
        (lambda: onnxblock.loss.HuberLoss(delta=0.0), "delta"),
    ],
)
def test_wrong_options(make: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make()


def test_weights_of_another_number_of_classes(tmp_path: Path) -> None:
    loss = onnxblock.loss.CrossEntropyLoss(weight=[1.0, 2.0])
    with pytest.raises(ValueError, match="2 factors for 3 classes"):
        generate(offset_model(np.zeros((6, 3), np.float32)), tmp_path, loss=loss)


def test_labels_of_another_shape(tmp_path: Path) -> None:
    model = offset_model(np.zeros((6, 3, 4), np.float32))
    labels = onnxblock.graphs.value_info("labels", 7, (6, 3))
    model.graph.input.append(labels)
    with pytest.raises(ArtifactError, match=r"'labels' has shape \(6, 3\).*asks for \(6, 4\)"):
        generate(model, tmp_path, loss="CrossEntropyLoss")
    with pytest.raises(ArtifactError, match=r"expected \(N, C\)"):
        generate(offset_model(np.zeros(6, np.float32)), tmp_path, loss="CrossEntropyLoss")


def test_a_target_of_another_shape_outside_of_generate_artifacts() -> None:
    model = offset_model(np.zeros((6, 3), np.float32))
    model.graph.input.append(onnxblock.graphs.value_info("target", 1, (6,)))
    with onnxblock.base(model), pytest.raises(ShapeMismatch, match=r"\(6\).*\(6, 3\)"):
        onnxblock.loss.MSELoss()("y")
