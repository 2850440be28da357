"""What exporters write around weights: functions, constants, branches, copies. All of it trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, TensorProto, helper, numpy_helper
from support.generated import generate

from edge_train.api import CheckpointState, Module
from edge_train.artifacts import LossType

WIDE = 300  # 300 x 64 floats: large enough to stay outside of the light model
W = np.random.default_rng(1).normal(size=(64, WIDE)).astype(np.float32) / 8
V = np.random.default_rng(2).normal(size=(WIDE, 3)).astype(np.float32) / 8
X = np.random.default_rng(3).normal(size=(5, 64)).astype(np.float32)
T = np.zeros((5, 3), np.float32)


def _gradients() -> tuple[np.ndarray, np.ndarray]:
    """Of mean((relu(X W) V)^2) with regard to W and V."""
    h = np.maximum(X @ W, 0)
    dy = 2 * (h @ V) / T.size
    return X.T @ ((dy @ V.T) * (h > 0)), h.T @ dy


def _model(
    nodes: list[onnx.NodeProto],
    weights: dict[str, np.ndarray],
    functions: list[onnx.FunctionProto] | None = None,
    opset: int = 17,
) -> onnx.ModelProto:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 64])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 3])
    tensors = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "g", [x], [y], tensors)
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("local", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8, functions=functions or [])


def _layer(x: str, w: str, y: str) -> list[onnx.NodeProto]:
    return [
        helper.make_node("MatMul", [x, w], [f"{y}_p"]),
        helper.make_node("Relu", [f"{y}_p"], [y]),
    ]


def _functions() -> onnx.ModelProto:
    alpha = helper.make_node("LeakyRelu", ["p"], ["b"])
    alpha.attribute.append(
        AttributeProto(name="alpha", ref_attr_name="slope", type=AttributeProto.FLOAT)
    )
    imports = [helper.make_opsetid("", 17)]
    body = [helper.make_node("MatMul", ["a", "m"], ["p"]), alpha]
    layer = helper.make_function("local", "layer", ["a", "m"], ["b"], body, imports, ["slope"])
    nodes = [
        helper.make_node("layer", ["x", "w"], ["h"], domain="local", name="one", slope=0.0),
        helper.make_node("layer", ["h", "v"], ["y"], domain="local", name="two", slope=1.0),
    ]
    return _model(nodes, {"w": W, "v": V}, [layer])


def _weights_in_functions() -> onnx.ModelProto:
    value = numpy_helper.from_array(W)
    body = [helper.make_node("Constant", [], ["m"], value=value), *_layer("a", "m", "b")]
    layer = helper.make_function(
        "local", "layer", ["a"], ["b"], body, [helper.make_opsetid("", 17)]
    )
    nodes = [
        helper.make_node("layer", ["x"], ["h"], domain="local", name="one"),
        helper.make_node("MatMul", ["h", "v"], ["y"]),
    ]
    return _model(nodes, {"v": V}, [layer])


def _constants() -> onnx.ModelProto:
    constants = [
        helper.make_node("Constant", [], [name], value=numpy_helper.from_array(value))
        for name, value in (("w", W), ("v", V))
    ]
    return _model(
        [*constants, *_layer("x", "w", "h"), helper.make_node("MatMul", ["h", "v"], ["y"])], {}
    )


def _branches() -> onnx.ModelProto:
    out = helper.make_tensor_value_info("r", TensorProto.FLOAT, None)
    then = helper.make_graph(
        _layer("x", "w", "r"), "then", [], [out], [numpy_helper.from_array(W, "w")]
    )
    other = helper.make_graph([helper.make_node("Exp", ["x"], ["r"])], "else", [], [out])
    nodes = [
        helper.make_node("If", ["c"], ["h"], then_branch=then, else_branch=other),
        helper.make_node("MatMul", ["h", "v"], ["y"]),
    ]
    return _model(nodes, {"c": np.array(True), "v": V})


def _inputs_as_well() -> onnx.ModelProto:
    """IR version 3: every initializer is an input too."""
    nodes = [*_layer("x", "w", "h"), helper.make_node("MatMul", ["h", "v"], ["y"])]
    model = _model(nodes, {"w": W, "v": V}, opset=8)
    model.ir_version = 3
    for tensor in model.graph.initializer:
        value = helper.make_tensor_value_info(tensor.name, TensorProto.FLOAT, tensor.dims)
        model.graph.input.append(value)
    del model.opset_import[1]
    return model


def _turned() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Transpose", ["wt"], ["w_turned"]),
        helper.make_node("Identity", ["v"], ["v_copy"]),
        *_layer("x", "w_turned", "h"),
        helper.make_node("MatMul", ["h", "v_copy"], ["y"]),
    ]
    return _model(nodes, {"wt": np.ascontiguousarray(W.T), "v": V})


def _copies() -> onnx.ModelProto:
    """Stored once under other names; asked for by the names of the copies."""
    nodes = [
        helper.make_node("Identity", ["stored_w"], ["w"]),
        helper.make_node("Identity", ["stored_v"], ["v"]),
        *_layer("x", "w", "h"),
        helper.make_node("MatMul", ["h", "v"], ["y"]),
    ]
    return _model(nodes, {"stored_w": W, "stored_v": V})


FORMS: dict[str, tuple[Any, list[str] | None]] = {
    "functions": (_functions, None),
    "weights in functions": (_weights_in_functions, None),
    "constants": (_constants, None),
    "branches": (_branches, None),
    "inputs as well": (_inputs_as_well, None),
    "turned": (_turned, None),
    "copies": (_copies, ["w", "v"]),
}


@pytest.mark.parametrize("source", [pytest.param("message", marks=pytest.mark.slow), "file"])
@pytest.mark.parametrize("form", FORMS)
def test_u020_every_form_trains(form: str, source: str, tmp_path: Path) -> None:
    write, names = FORMS[form]
    model: Any = write()
    onnx.save(model, tmp_path / "model.onnx")
    given = model if source == "message" else tmp_path / "model.onnx"
    artifacts = generate(given, tmp_path / "out", requires_grad=names, loss=LossType.MSELoss)
    state = CheckpointState.load_checkpoint(artifacts.checkpoint)
    module = Module(artifacts.training_model, state, artifacts.eval_model)
    loss = module(X, T)
    np.testing.assert_allclose(loss, np.mean((np.maximum(X @ W, 0) @ V) ** 2), rtol=1e-5)
    gradients = {parameter.grad.shape: parameter.grad for _, parameter in state.parameters}
    assert len(gradients) == 2
    d_w, d_v = _gradients()
    for wanted in (d_w, d_v):
        got = gradients.get(wanted.shape)
        got = gradients[wanted.T.shape].T if got is None else got
        np.testing.assert_allclose(got, wanted, atol=1e-5 * np.abs(wanted).max() + 1e-7, rtol=1e-3)
