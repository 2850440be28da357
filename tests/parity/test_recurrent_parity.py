"""Artifacts of recurrent nets: beside the live reference, and those it writes but cannot run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper
from support.reference import Reference
from support.training import (
    GRADIENT,
    LOSS,
    gradient_errors,
    module_of,
    session_of,
    set_parameters,
)
from support.zoo import Artifacts

_HIDDEN, _INPUT, _CLASSES, _STEPS = 5, 4, 3, 4
_GATES = {"LSTM": 4, "GRU": 3}
Feed = dict[str, NDArray[Any]]


def _weights(op: str, layer: int, width: int, many: int, peepholes: bool) -> dict[str, NDArray]:
    rng = np.random.default_rng(91 + layer)
    size = _GATES[op] * _HIDDEN
    shapes = {"w": (many, size, width), "r": (many, size, _HIDDEN), "b": (many, 2 * size)}
    if peepholes:
        shapes["p"] = (many, 3 * _HIDDEN)
    return {
        f"{name}{layer}": rng.standard_normal(shape).astype(np.float32) / 2
        for name, shape in shapes.items()
    }


def net(ops: list[str], lens: bool = False, peepholes: bool = False, **attrs: Any) -> ModelProto:
    """Recurrent layers on x (T, N, I), the last step's states to classes. States are inputs."""
    many = 2 if attrs.get("direction") == "bidirectional" else 1
    weights: dict[str, NDArray] = {"flat": np.array([0, -1, many * _HIDDEN])}
    nodes, source, width = [], "x", _INPUT
    for layer, op in enumerate(ops):
        made = _weights(op, layer, width, many, peepholes)
        weights |= made
        inputs = [source, *(f"{name}{layer}" for name in "wrb"), "lens" if lens else "", "h0"]
        inputs += ["c0"] if op == "LSTM" else []
        inputs += [f"p{layer}"] if peepholes else []
        nodes.append(
            helper.make_node(
                op,
                inputs,
                [f"y{layer}", f"last{layer}"],
                f"rnn{layer}",
                hidden_size=_HIDDEN,
                **attrs,
            )
        )
        moved, joined, width = f"moved{layer}", f"joined{layer}", many * _HIDDEN
        nodes.append(
            helper.make_node("Transpose", [f"y{layer}"], [moved], f"move{layer}", perm=[0, 2, 1, 3])
        )
        nodes.append(helper.make_node("Reshape", [moved, "flat"], [joined], f"join{layer}"))
        source = joined
    rng = np.random.default_rng(90)
    weights["wf"] = rng.standard_normal((_CLASSES, width)).astype(np.float32)
    nodes += [
        helper.make_node("ReduceMean", [source], ["mean"], "mean", axes=[0], keepdims=0),
        helper.make_node("Gemm", ["mean", "wf"], ["scores"], "head", transB=1),
    ]
    return _model(nodes, weights, many, lens, "LSTM" in ops)


def _model(nodes: list[Any], weights: dict[str, NDArray], many: int, lens: bool, cells: bool):
    tensor = helper.make_tensor_value_info
    inputs = [
        tensor("x", TensorProto.FLOAT, ["T", "N", _INPUT]),
        tensor("h0", TensorProto.FLOAT, [many, "N", _HIDDEN]),
    ]
    inputs += [tensor("c0", TensorProto.FLOAT, [many, "N", _HIDDEN])] if cells else []
    inputs += [tensor("lens", TensorProto.INT32, ["N"])] if lens else []
    graph = helper.make_graph(
        nodes,
        "net",
        inputs,
        [tensor("scores", TensorProto.FLOAT, ["N", _CLASSES])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8)


def generate(reference: Reference, folder: Path, model: ModelProto) -> Artifacts:
    """The reference's artifacts with every weight trained."""
    folder.mkdir()
    names = [item.name for item in model.graph.initializer if item.data_type == TensorProto.FLOAT]
    return reference.generate_artifacts(
        model.SerializeToString(), folder, requires_grad=names, nominal=False
    )


def batch(model: ModelProto, steps: int, size: int) -> Feed:
    """Random inputs of a model, and labels."""
    rng = np.random.default_rng(92)
    many = next(v for v in model.graph.input if v.name == "h0").type.tensor_type.shape.dim[0]
    state = (many.dim_value, size, _HIDDEN)
    feed: Feed = {
        "x": rng.standard_normal((steps, size, _INPUT)).astype(np.float32),
        "h0": rng.standard_normal(state).astype(np.float32),
        "c0": rng.standard_normal(state).astype(np.float32),
        "lens": rng.integers(1, steps + 1, size).astype(np.int32),
    }
    names = {value.name for value in model.graph.input}
    kept = {name: value for name, value in feed.items() if name in names}
    return {**kept, "labels": rng.integers(0, _CLASSES, size)}


_RUNS_THERE: dict[str, tuple[list[str], dict[str, Any]]] = {
    "LSTM": (["LSTM"], {}),
    "GRU": (["GRU"], {}),
    "GRU, linear_before_reset": (["GRU"], {"linear_before_reset": 1}),
    "two LSTMs": (["LSTM", "LSTM"], {}),
    "LSTM and GRU": (["LSTM", "GRU"], {}),
}


@pytest.mark.parametrize("name", _RUNS_THERE)
def test_u016_steps_from_equal_weights(reference: Reference, tmp_path: Path, name: str) -> None:
    """One graph, three batch sizes and lengths, beside the reference."""
    ops, attrs = _RUNS_THERE[name]
    model = net(ops, **attrs)
    artifacts = generate(reference, tmp_path / "made", model)
    theirs, (module, _) = reference.load(artifacts), session_of(artifacts)
    theirs.set_learning_rate(0.02)
    for steps, size in ((6, 4), (1, 1), (9, 2)):
        feed = batch(model, steps, size)
        set_parameters(module, theirs.parameters())
        wanted = float(theirs.train_step(feed)[0])
        module.lazy_reset_grad()
        assert abs(float(module(**feed)) - wanted) <= LOSS * abs(wanted)
        assert max(gradient_errors(module, theirs.gradients()).values()) <= GRADIENT
        theirs.optimizer_step()
        theirs.lazy_reset_grad()


_ONLY_HERE: dict[str, tuple[str, dict[str, Any]]] = {
    "bidirectional LSTM": ("LSTM", {"direction": "bidirectional"}),
    "bidirectional GRU": ("GRU", {"direction": "bidirectional", "linear_before_reset": 1}),
    "reverse LSTM": ("LSTM", {"direction": "reverse"}),
    "lengths": ("LSTM", {"lens": True}),
    "bidirectional GRU with lengths": ("GRU", {"lens": True, "direction": "bidirectional"}),
    "clip": ("LSTM", {"clip": 0.7}),
    "input_forget": ("LSTM", {"input_forget": 1}),
    "activations": ("LSTM", {"activations": ["HardSigmoid", "Softsign", "Tanh"]}),
    "peepholes": ("LSTM", {"peepholes": True}),
}


@pytest.mark.parametrize("name", _ONLY_HERE)
def test_u016_written_there_trained_here(reference: Reference, tmp_path: Path, name: str) -> None:
    """The training loss is the eval graph's, the gradient its slope, and ten steps lower it."""
    op, attrs = _ONLY_HERE[name]
    model = net([op], **attrs)
    artifacts = generate(reference, tmp_path / "made", model)
    feed = batch(model, 6, 4)
    module, optimizer = session_of(artifacts)
    first = float(module(**feed))
    assert float(module.eval()(**feed)) == pytest.approx(first, rel=1e-5)
    _check_slopes(artifacts, feed)
    optimizer.set_learning_rate(0.02)
    for _ in range(10):
        module.train()
        module.lazy_reset_grad()
        module(**feed)
        assert optimizer.step()
    assert float(module.eval()(**feed)) < 0.9 * first


def _check_slopes(artifacts: Artifacts, feed: Feed) -> None:
    """Along the gradient itself: the slope is its norm."""
    module = module_of(artifacts)
    module.lazy_reset_grad()
    module(**feed)
    module.eval()
    for name, parameter in module.state.parameters:
        if not parameter.requires_grad:
            continue
        gradient, start = parameter.grad.copy(), parameter.data.copy()
        norm = float(np.linalg.norm(gradient))
        losses = []
        for step in (2e-3, -2e-3):
            parameter.data[...] = start + step / norm * gradient
            losses.append(float(module(**feed)))
        parameter.data[...] = start
        assert (losses[0] - losses[1]) / 4e-3 == pytest.approx(norm, rel=5e-3), name
