"""The codec: unchanged models are the same message, and faults are named."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.onnx_messages import RandomMessages, nested_graphs, record
from support.zoo import SEIZURE, ZOO

from edge_train import dtypes
from edge_train.errors import ArtifactError
from edge_train.graph import ir, onnx_codec

FILES = [
    *(path for case in ZOO.values() for path in sorted(case.folder.glob("*.onnx"))),
    *sorted(SEIZURE.folder.glob("*.onnx")),
]


def _same(message: onnx.ModelProto) -> bool:
    data = onnx_codec.encode(onnx_codec.decode(message.SerializeToString()))
    return bool(onnx.ModelProto.FromString(data) == message)


def test_golden_models_are_the_same_message() -> None:
    assert len(FILES) > 100
    for path in FILES:
        assert _same(onnx.ModelProto.FromString(path.read_bytes())), path


@pytest.mark.parametrize("seed", range(25))
def test_random_models_are_the_same_message(seed: int) -> None:
    assert _same(RandomMessages(seed).model())


def test_comparison_can_fail() -> None:
    message = RandomMessages(3).model()
    model = onnx_codec.decode(message.SerializeToString())
    model.graph.name += "x"
    assert onnx.ModelProto.FromString(onnx_codec.encode(model)) != message


def test_sparse_functions_and_training_info_are_kept() -> None:
    values = numpy_helper.from_array(np.ones(2, np.float32), "s")
    sparse = helper.make_sparse_tensor(values, numpy_helper.from_array(np.array([0, 3])), [5])
    graph = helper.make_graph([], "g", [], [], sparse_initializer=[sparse])
    identity = helper.make_node("Identity", ["x"], ["y"])
    function = helper.make_function(
        "my", "F", ["x"], ["y"], [identity], [helper.make_opsetid("", 15)], ["alpha"]
    )
    message = helper.make_model(graph, functions=[function], producer_name="p")
    message.training_info.add().algorithm.name = "a"
    helper.set_model_props(message, {"k": "v"})
    assert _same(message)
    model = onnx_codec.decode(message.SerializeToString())
    assert len(model.functions) == 1


_TYPED = [
    np.array([1.5, -2], np.float32),
    np.array([1.5, -2], np.float64),
    np.array([1.5, -2], np.float16),
    np.array([1 + 2j], np.complex64),
    np.array([1 + 2j], np.complex128),
    np.array([True, False]),
    *(np.array([0, 1, np.iinfo(t).max], t) for t in ("u1", "u2", "u4", "u8")),
    *(np.array([-1, np.iinfo(t).min], t) for t in ("i1", "i2", "i4", "i8")),
]


@pytest.mark.parametrize("array", _TYPED, ids=lambda array: array.dtype.name)
def test_typed_tensor_data(array: np.ndarray) -> None:
    number = dtypes.number_of(array.dtype)
    message = helper.make_model(
        helper.make_graph([], "g", [], [], [helper.make_tensor("t", number, array.shape, array)])
    )
    assert not message.graph.initializer[0].HasField("raw_data")
    tensor = onnx_codec.decode(message.SerializeToString()).graph.initializers["t"]
    np.testing.assert_array_equal(tensor.array(), array)
    assert tensor.array().dtype == array.dtype
    assert _same(message)


def test_string_tensor() -> None:
    tensor = helper.make_tensor("t", TensorProto.STRING, [2], [b"a", "ü".encode()])
    message = helper.make_model(helper.make_graph([], "g", [], [], [tensor]))
    model = onnx_codec.decode(message.SerializeToString())
    assert model.graph.initializers["t"].strings == (b"a", "ü".encode())
    with pytest.raises(ArtifactError, match="'t' holds string"):
        model.graph.initializers["t"].array()
    assert _same(message)


def test_attribute_without_type_field() -> None:
    """Files of IR version 1 and 2 write the value alone."""
    node = helper.make_node("Op", [], [], i=3, f=0.0, s="text", ints=[1, 2])
    for attribute in node.attribute:
        attribute.ClearField("type")
    message = helper.make_model(helper.make_graph([node], "g", [], []))
    read = onnx_codec.decode(message.SerializeToString()).graph.nodes[0]
    assert [read.attr(name) for name in ("i", "f", "s", "ints")] == [3, 0.0, "text", (1, 2)]
    assert {a.type for a in read.attributes.values()} == {ir.INT, ir.FLOAT, ir.STRING, ir.INTS}
    assert _same(message)


def test_changed_type_is_written_over_the_kept_one() -> None:
    value = helper.make_tensor_value_info("x", 1, ["N", 3], shape_denotation=["BATCH", ""])
    message = helper.make_model(helper.make_graph([], "g", [value], []))
    model = onnx_codec.decode(message.SerializeToString())
    assert (model.graph.inputs[0].elem_type, model.graph.inputs[0].dims) == (1, ("N", 3))
    model.graph.inputs[0] = dataclasses.replace(model.graph.inputs[0], dims=(4, 3))
    written = onnx.ModelProto.FromString(onnx_codec.encode(model))
    assert [d.dim_value for d in written.graph.input[0].type.tensor_type.shape.dim] == [4, 3]


def test_built_model_is_valid_onnx() -> None:
    body = ir.Graph("b", [ir.make_node("Identity", ["x"], ["z"])], outputs=[ir.Value("z", 1, (2,))])
    node = ir.make_node("If", ["c"], ["y"], "if", then_branch=body, else_branch=body)
    graph = ir.Graph(
        "g",
        [node],
        [ir.Value("x", 1, (2,)), ir.Value("c", 9, ())],
        [ir.Value("y", 1, ("N",))],
        {"w": ir.Tensor.of("w", np.eye(2, dtype=">f4"))},
    )
    data = onnx_codec.encode(ir.Model(graph, 8, [("", 17)]))
    message = onnx.load_from_string(data)
    onnx.checker.check_model(message, full_check=True)
    np.testing.assert_array_equal(numpy_helper.to_array(message.graph.initializer[0]), np.eye(2))


# --- faults ------------------------------------------------------------------------------------

_TWICE = TensorProto(name="w", dims=[1], data_type=1, raw_data=bytes(4))
_BAD_BYTES = [
    (b"", "is empty"),
    (b"plain text, no protobuf", "not an ONNX model, or is damaged"),
    (record(2, b"producer"), "has no graph"),
    (b"\x18\x00\x00\x00ORTM" + bytes(40), "ORT format.*pass the .onnx file"),
    (b"\x18\x00\x00\x00ODTC" + bytes(40), "is a training checkpoint"),
    (nested_graphs(5000), "not an ONNX model, or is damaged"),
    (record(7, record(1, record(3, b"\xff\xfe"))), "not UTF-8"),
    (record(7, record(5, _TWICE.SerializeToString()) * 2), "two initializers named 'w'"),
    (record(7, record(1, record(5, record(1, b"a")) * 2)), "attribute 'a' twice"),
]


@pytest.mark.parametrize(("data", "words"), _BAD_BYTES, ids=[words for _, words in _BAD_BYTES])
def test_bad_file_is_named(data: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    with pytest.raises(ArtifactError, match=rf"(?s)model\.onnx.*{words}"):
        onnx_codec.load(path)
    with pytest.raises(ArtifactError, match=rf"(?s)given as bytes.*{words}"):
        onnx_codec.load(bytearray(data))


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.onnx"):
        onnx_codec.load(str(tmp_path / "none.onnx"))
    with pytest.raises(ArtifactError, match="is a folder"):
        onnx_codec.load(tmp_path)
    with pytest.raises(ArtifactError, match="cannot be read"):
        onnx_codec.load("with\0zero")


def test_unreadable_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x")
    with pytest.raises(ArtifactError, match="cannot be read"):
        onnx_codec.load(file / "model.onnx")


def test_graphs_may_nest(tmp_path: Path) -> None:
    assert onnx_codec.decode(nested_graphs(25)).graph.nodes


@pytest.mark.parametrize(
    ("dims", "raw"),
    [((2, 2), bytes(12)), ((-1,), bytes(4)), ((2**62, 2**62), bytes(4)), ((0,), bytes(4))],
)
def test_data_that_does_not_fill_the_dims(dims: tuple[int, ...], raw: bytes) -> None:
    with pytest.raises(ArtifactError, match="tensor 'w' of float32"):
        ir.Tensor("w", dtypes.FLOAT, dims, raw).array()


# --- external data -----------------------------------------------------------------------------


def _external(tmp_path: Path) -> Path:
    weight = numpy_helper.from_array(np.arange(6, dtype=np.float32).reshape(2, 3), "w")
    node = helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(np.ones(2), "c"))
    message = helper.make_model(helper.make_graph([node], "g", [], [], [weight]))
    path = tmp_path / "model.onnx"
    onnx.save(
        message,
        path,
        save_as_external_data=True,
        location="model.data",
        size_threshold=0,
        convert_attribute=True,
    )
    return path


def test_external_data_is_read(tmp_path: Path) -> None:
    path = _external(tmp_path)
    model = onnx_codec.load(path)
    expected = np.arange(6).reshape(2, 3)
    np.testing.assert_array_equal(model.graph.initializers["w"].array(), expected)
    np.testing.assert_array_equal(model.graph.nodes[0].attr("value").array(), np.ones(2))
    assert _same(onnx.load(path, load_external_data=False))
    with pytest.raises(ArtifactError, match="pass the model's path"):
        onnx_codec.load(path.read_bytes())
    with pytest.raises(ArtifactError, match="was not read in"):
        onnx_codec.decode(path.read_bytes()).graph.initializers["w"].array()


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"location": "../model.data"}, "not a file in the model's folder"),
        ({"location": "/etc/hostname"}, "not a file in the model's folder"),
        ({"location": ""}, "not a file in the model's folder"),
        ({"location": "."}, "not a file in the model's folder"),
        ({"location": "a\0b"}, "not a file in the model's folder"),
        ({"location": "link"}, "not a file in the model's folder"),
        ({"location": "gone.data"}, "cannot be read: No such file"),
        ({"location": "pipe"}, "a device or a pipe"),
        ({"location": "model.data", "length": "99"}, "the file has 40"),
        ({"location": "model.data", "length": "36"}, "needs 40 bytes, its .* has 36"),
        ({"location": "model.data", "offset": "99"}, "the file has 40"),
        ({"location": "model.data", "offset": "-1"}, "is no size"),
        ({"location": "model.data", "length": "1" * 30}, "is no size"),
    ],
)
def test_external_data_refused(entries: dict[str, str], words: str, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "model.data").write_bytes(bytes(40))
    (tmp_path / "model.data").write_bytes(bytes(40))
    (folder / "link").symlink_to(tmp_path / "model.data")
    os.mkfifo(folder / "pipe")
    tensor = ir.Tensor("w", 1, (10,), None, external=tuple(entries.items()))
    path = folder / "model.onnx"
    path.write_bytes(onnx_codec.encode(ir.Model(ir.Graph("g", initializers={"w": tensor}), 8, [])))
    with pytest.raises(ArtifactError, match=f"'w'.*{words}"):
        onnx_codec.load(path)


def test_external_data_without_a_length_is_as_long_as_the_tensor(tmp_path: Path) -> None:
    """As onnxruntime takes it: more tensors may follow in the file."""
    values = np.arange(12, dtype=np.float32)
    (tmp_path / "model.data").write_bytes(values.tobytes())
    entries = (("location", "model.data"), ("offset", "8"))
    graph = ir.Graph("g", initializers={"w": ir.Tensor("w", 1, (2, 3), None, external=entries)})
    path = tmp_path / "model.onnx"
    path.write_bytes(onnx_codec.encode(ir.Model(graph, 8, [])))
    loaded = onnx_codec.load(path).graph.initializers["w"]
    np.testing.assert_array_equal(loaded.array(), values[2:8].reshape(2, 3))


# --- protobuf's other implementation, speed ----------------------------------------------------

_SCRIPT = """
import sys
from edge_train.graph import onnx_codec
from google.protobuf.internal import api_implementation
assert api_implementation.Type() == "python"
for path in sys.argv[1:]:
    model = onnx_codec.load(path)
    assert onnx_codec.decode(onnx_codec.encode(model)) == model
assert "onnx" not in sys.modules
import onnx
assert onnx.load(sys.argv[1]) == onnx.ModelProto.FromString(
    onnx_codec.encode(onnx_codec.load(sys.argv[1])))
"""


def test_pure_python_protobuf() -> None:
    files = [ZOO[name].training_model for name in ("mlp_MSELoss", "unet_concat_residual")]
    env = {**os.environ, "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"}
    command = [sys.executable, "-c", _SCRIPT, *map(str, files)]
    done = subprocess.run(
        command, env=env, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_reading_a_large_graph_is_quick() -> None:
    model = onnx_codec.load(ZOO["transformer_decomposedLN_erf"].training_model)
    model.graph.nodes *= 5
    data = onnx_codec.encode(model)
    assert len(onnx_codec.decode(data).graph.nodes) > 600
    took = []
    for _ in range(5):
        start = time.process_time()
        onnx_codec.decode(data)
        took.append(time.process_time() - start)
    assert min(took) < 0.06  # seconds; it takes about a sixth of that
