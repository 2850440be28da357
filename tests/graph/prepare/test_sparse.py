"""Sparse initializers and constants become dense ones with the same values; damaged ones are told.

The witness is the dense array that the sparse tensor was made from.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edge_train.api import CheckpointState, Module
from edge_train.artifacts import LossType, generate_artifacts
from edge_train.errors import ArtifactError
from edge_train.graph import onnx_codec
from edge_train.graph.prepare import tidy

DENSE = np.array([[0, 1.5, 0, 0], [2.5, 0, 0, -1]], np.float32)


def _sparse(dense: np.ndarray, flat: bool, name: str = "s") -> onnx.SparseTensorProto:
    places = np.argwhere(dense)
    values = numpy_helper.from_array(dense[tuple(places.T)], name)
    if flat:
        places = np.flatnonzero(dense)
    indices = numpy_helper.from_array(places.astype(np.int64), "places")
    return helper.make_sparse_tensor(values, indices, dense.shape)


def _model(graph: onnx.GraphProto) -> onnx.ModelProto:
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _floats(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, None)


def _adding(tensor: onnx.SparseTensorProto) -> onnx.ModelProto:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"])]
    nodes.append(helper.make_node("Add", ["h", "s"], ["y"]))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4])
    weight = numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")
    graph = helper.make_graph(nodes, "g", [x], [y], [weight], sparse_initializer=[tensor])
    return _model(graph)


def _tensor(model: onnx.ModelProto, name: str = "s") -> np.ndarray:
    ready = tidy(onnx_codec.decode(model.SerializeToString()))
    return ready.graph.initializers[name].array()


@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("kind", [np.float32, np.float64, np.float16, np.int64])
def test_values(flat: bool, kind: type) -> None:
    dense = DENSE.astype(kind)
    found = _tensor(_adding(_sparse(dense, flat)))
    np.testing.assert_array_equal(found, dense)
    assert found.dtype == kind


def test_nothing_but_zeros() -> None:
    np.testing.assert_array_equal(_tensor(_adding(_sparse(DENSE * 0, True))), DENSE * 0)


def test_a_constant_in_a_function_and_a_branch() -> None:
    constant = helper.make_node("Constant", [], ["s"], sparse_value=_sparse(DENSE, False, ""))
    product = helper.make_node("Mul", ["x", "s"], ["r"])
    function = helper.make_function(
        "my", "F", ["x"], ["r"], [constant, product], [helper.make_opsetid("", 17)]
    )
    inner = [helper.make_node("Add", ["h", "b"], ["t"])]
    kept = helper.make_graph(inner, "then", [], [_floats("t")])
    kept.sparse_initializer.append(_sparse(DENSE, True, "b"))
    other = helper.make_graph([helper.make_node("Neg", ["h"], ["t"])], "else", [], [_floats("t")])
    nodes = [
        helper.make_node("F", ["x"], ["h"], domain="my"),
        helper.make_node("If", ["c"], ["y"], then_branch=kept, else_branch=other),
    ]
    condition = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    graph = helper.make_graph(nodes, "g", [_floats("x"), condition], [_floats("y")])
    model = _model(graph)
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("my", 1))
    ready = tidy(onnx_codec.decode(model.SerializeToString())).graph
    made = [tensor.array() for tensor in ready.initializers.values()]
    assert any(np.array_equal(array, DENSE) for array in made)
    branch = ready.nodes[-1].attr("then_branch")
    np.testing.assert_array_equal(branch.initializers["b"].array(), DENSE)
    assert not branch.extra


def test_it_trains(tmp_path: Path) -> None:
    """The first loss is that of the dense values."""
    model = _adding(_sparse(DENSE[1], True))
    generate_artifacts(model, loss=LossType.MSELoss, artifact_directory=tmp_path)
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(tmp_path / "training_model.onnx", state, tmp_path / "eval_model.onnx")
    x = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)
    loss = float(module.train()(x, np.zeros((2, 4), np.float32)))
    assert loss == pytest.approx(float(np.mean((x + DENSE[1]) ** 2)), rel=1e-6)
    gradient = np.array(state.parameters["s"].grad)
    np.testing.assert_allclose(gradient, (x + DENSE[1]).sum(0) / 4, rtol=1e-5)


def _with(**fields: object) -> onnx.ModelProto:
    tensor = _sparse(DENSE, True)
    for name, value in fields.items():
        if name == "dims":
            tensor.dims[:] = value  # type: ignore[assignment]
        else:
            getattr(tensor, name).CopyFrom(numpy_helper.from_array(value, "s"))
    return _adding(tensor)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (_with(indices=np.array([1, 4, 8])), "is damaged: 3 values ask for int64 indices"),
        (_with(indices=np.array([1, 4, -1])), "is damaged"),
        (_with(indices=np.array([1, 4])), r"got int64 \[2\]"),
        (_with(indices=np.array([1, 4, 5], np.int32)), r"got int32 \[3\]"),
        (_with(indices=np.array([[0, 1], [1, 0], [1, 4]])), "is damaged"),
        (_with(dims=[1 << 20, 1 << 20]), "does not fit into a dense tensor of 2 GB"),
        (_with(dims=[-2, 4]), "is damaged: a size is negative"),
        (_with(values=np.array(["a", "b", "c"], object)), "write it as a dense initializer"),
    ],
)
def test_what_cannot_be_read_is_named(model: onnx.ModelProto, words: str) -> None:
    with pytest.raises(ArtifactError, match=rf"sparse initializer 's' .*{words}"):
        tidy(onnx_codec.decode(model.SerializeToString()))


def test_bytes_that_are_no_sparse_tensor() -> None:
    model = onnx_codec.decode(_adding(_sparse(DENSE, True)).SerializeToString())
    model.graph.extra = b"\x7a\x02\xff\xff"
    with pytest.raises(ArtifactError, match="a sparse tensor of graph 'g' is damaged"):
        tidy(model)


def test_two_initializers_of_a_name() -> None:
    model = _adding(_sparse(DENSE, True, "w"))
    with pytest.raises(ArtifactError, match="two initializers named 'w'"):
        _tensor(model, "w")
