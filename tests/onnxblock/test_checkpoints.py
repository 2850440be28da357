"""A checkpoint's values into a forward model: wherever its weights are, in their type."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.generated import generate, mlp

import edge_train.onnxblock as onnxblock
from edge_train.api import CheckpointState
from edge_train.checkpoint.files import open_checkpoint
from edge_train.convert.onnx_model import from_onnx, to_onnx
from edge_train.errors import ArtifactError, CheckpointError
from edge_train.graph import ir
from edge_train.graph.prepare.faults import explained

RNG = np.random.default_rng(0)
W = RNG.standard_normal((4, 6)).astype(np.float32)
CW = RNG.standard_normal((6, 3)).astype(np.float32)
SQUARE = RNG.standard_normal((3, 3)).astype(np.float32)
X = RNG.standard_normal((2, 4)).astype(np.float32)
NEW = {"w": W + 1, "cw": CW - 1, "own": SQUARE * 2, "turned": SQUARE.T - 3}


def _scattered() -> onnx.ModelProto:
    """Weights in an initializer, in a Constant, and as an Identity and a Transpose of another."""
    nodes = [
        helper.make_node("Constant", [], ["cw"], value=numpy_helper.from_array(CW, "")),
        helper.make_node("Identity", ["square"], ["own"]),
        helper.make_node("Transpose", ["square"], ["turned"], perm=[1, 0]),
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("MatMul", ["h", "cw"], ["i"]),
        helper.make_node("MatMul", ["i", "own"], ["j"]),
        helper.make_node("MatMul", ["j", "turned"], ["k"]),
        helper.make_node("MatMul", ["k", "square"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 3])
    weights = [numpy_helper.from_array(a, n) for n, a in (("w", W), ("square", SQUARE))]
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _saved(path: Path, **arrays: np.ndarray) -> Path:
    protos = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    onnxblock.save_checkpoint((protos, []), path)
    return path


def _run(model: onnx.ModelProto) -> np.ndarray:
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return np.asarray(session.run(["y"], {"x": X})[0])


def _expected() -> np.ndarray:
    return np.asarray(X @ NEW["w"] @ NEW["cw"] @ NEW["own"] @ NEW["turned"] @ SQUARE)


def test_every_weight_that_is_trained_gets_back_into_the_forward_model(tmp_path: Path) -> None:
    path = _saved(tmp_path / "c", **NEW)
    model = _scattered()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        onnxblock.load_checkpoint_to_model(path, model)
    np.testing.assert_allclose(_run(model), _expected(), rtol=1e-4)
    onnx.save(_scattered(), tmp_path / "m.onnx")
    for data in (False, True):
        to_onnx(path, tmp_path / "m.onnx", tmp_path / "out.onnx", external_data=data)
        written = onnx.load(tmp_path / "out.onnx")
        np.testing.assert_allclose(_run(written), _expected(), rtol=1e-4)


def test_every_weight_of_a_model_gets_into_a_checkpoint(tmp_path: Path) -> None:
    """The same ones as generate_artifacts trains, with and without a checkpoint to be like."""
    for names in (None, ["w", "cw", "own", "turned"]):
        made = generate(_scattered(), tmp_path, loss="MSELoss", requires_grad=names)
        bytes_of = _scattered().SerializeToString()
        from_onnx(bytes_of, tmp_path / "plain", train=names)
        from_onnx(bytes_of, tmp_path / "like", like=made.checkpoint)
        with open_checkpoint(made.checkpoint) as checkpoint:
            expected = {t.name: t.array() for t in checkpoint.trainable}
        assert {"w", "cw"} < set(expected)
        for path in ("plain", "like"):
            with open_checkpoint(tmp_path / path) as checkpoint:
                got = {t.name: t.array() for t in checkpoint.trainable}
            assert list(got) == list(expected)
            for name, array in expected.items():
                np.testing.assert_array_equal(got[name], array)


def test_a_tie_that_is_not_in_the_checkpoint_stays_one(tmp_path: Path) -> None:
    """A copy that was not trained on its own follows its source."""
    new = {"w": W, "cw": CW, "square": SQUARE + 1}
    path = _saved(tmp_path / "c", **new)
    to_onnx(path, _scattered().SerializeToString(), tmp_path / "out.onnx")
    square = new["square"]
    expected = X @ W @ CW @ square @ square.T @ square
    np.testing.assert_allclose(_run(onnx.load(tmp_path / "out.onnx")), expected, rtol=1e-4)


def test_names_without_a_place_are_told(tmp_path: Path) -> None:
    """The parameters of a loss, say; a checkpoint of which nothing fits is the wrong one."""
    model = _scattered()
    with pytest.warns(UserWarning, match=r"no place for \['head'\] .*1 of 2 parameters"):
        onnxblock.load_checkpoint_to_model(_saved(tmp_path / "c", w=W + 1, head=W), model)
    np.testing.assert_array_equal(numpy_helper.to_array(model.graph.initializer[0]), W + 1)
    before = model.SerializeToString(deterministic=True)
    with pytest.raises(CheckpointError, match=r"no place for \['head'\]"):
        onnxblock.load_checkpoint_to_model(_saved(tmp_path / "no", head=W), model)
    with pytest.raises(CheckpointError, match="the model wants float32"):
        onnxblock.load_checkpoint_to_model(_saved(tmp_path / "no", w=W + 2, cw=W), model)
    assert model.SerializeToString(deterministic=True) == before


def test_a_malformed_model_is_ours_to_name(tmp_path: Path) -> None:
    model = _scattered()
    model.graph.node[2].attribute[0].ints[:] = [0, 7]
    with pytest.raises(ArtifactError, match="malformed"):
        from_onnx(model.SerializeToString(), tmp_path / "no", train=["turned"])
    with pytest.raises(ArtifactError, match="malformed"):
        generate(model, tmp_path / "set", loss="MSELoss", requires_grad=["turned"])
    path = _saved(tmp_path / "c", **NEW)
    with pytest.raises(ArtifactError, match="'turned'"):
        to_onnx(path, model.SerializeToString(), tmp_path / "no")
    model.graph.node[2].attribute[0].CopyFrom(helper.make_attribute("perm", 5))
    with pytest.raises(ArtifactError, match="malformed"):
        to_onnx(path, model.SerializeToString(), tmp_path / "no")


def test_without_onnx_a_malformed_model_is_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device converts without it: nobody can ask the checker there."""
    monkeypatch.setitem(sys.modules, "onnx", None)
    with (
        pytest.raises(ArtifactError, match=r"malformed: TypeError\('of a node'\)"),
        explained(ir.Model(ir.Graph("g"), 8, [("", 17)])),
    ):
        raise TypeError("of a node")


@pytest.mark.parametrize("kind", [TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16])
def test_a_place_keeps_its_type(kind: int, tmp_path: Path) -> None:
    """Half precision is trained as float32: the values are rounded to what the model has."""
    model = _scattered()
    w = model.graph.initializer[0]
    w.CopyFrom(helper.make_tensor("w", kind, W.shape, W.ravel().tolist()))
    w.doc_string = "kept"
    new = np.full((4, 6), 1 + 2**-8 + 2**-20, np.float32)  # just above a tie of bfloat16
    new[0, :3] = [np.nan, np.inf, -3.0]
    path = _saved(tmp_path / "c", w=new)
    to_onnx(path, model.SerializeToString(), tmp_path / "out.onnx")
    onnxblock.load_checkpoint_to_model(path, model)
    expected = new
    if kind == TensorProto.BFLOAT16:
        expected = np.full_like(new, 1 + 2**-7)
        expected[0, :3] = new[0, :3]
    elif kind == TensorProto.FLOAT16:
        expected = new.astype(np.float16)
    for got in (model.graph.initializer[0], onnx.load(tmp_path / "out.onnx").graph.initializer[0]):
        assert got.data_type == kind
        assert got.doc_string == "kept"
        array = numpy_helper.to_array(got).astype(np.float64)
        np.testing.assert_array_equal(array, expected.astype(np.float64))


def test_texts_there_and_back(tmp_path: Path) -> None:
    words = helper.make_tensor("words", TensorProto.STRING, [2, 1], ["\u2603".encode(), b""])
    onnxblock.save_checkpoint(([numpy_helper.from_array(W, "w")], [words]), tmp_path / "c")
    with open_checkpoint(tmp_path / "c") as checkpoint:
        assert checkpoint.frozen[0].array().tolist() == [["\u2603"], [""]]
    model = _scattered()
    old = helper.make_tensor("words", TensorProto.STRING, [2, 1], [b"x", b"y"])
    model.graph.initializer.append(old)
    onnxblock.load_checkpoint_to_model(tmp_path / "c", model)
    assert model.graph.initializer[-1] == words


def test_checkpoint_into_a_model(tmp_path: Path) -> None:
    made = generate(mlp(), tmp_path, loss="MSELoss", nominal_checkpoint=True)
    state = CheckpointState.load_checkpoint(made.checkpoint)
    state.parameters["w1"].data[...] = 7
    CheckpointState.save_checkpoint(state, tmp_path / "new")
    model = mlp()
    onnxblock.load_checkpoint_to_model(tmp_path / "new", model)
    values = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    assert np.all(values["w1"] == 7)
    np.testing.assert_array_equal(values["w2"], state.parameters["w2"].data)
    with pytest.raises(CheckpointError, match="nominal"):
        onnxblock.load_checkpoint_to_model(made.nominal_checkpoint, model)
    with pytest.raises(RuntimeError):
        onnxblock.save_checkpoint(None, tmp_path / "none")  # type: ignore[arg-type]
