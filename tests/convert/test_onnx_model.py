"""ONNX model <-> checkpoint, weights inside or beside: lossless, and models that lie."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, external_data_helper, helper, numpy_helper
from support.states import ALL_CASES, ZOO_CASES, save_arrays, values
from support.zoo import SEIZURE, ZOO, Artifacts, Case

from edge_train import model_file
from edge_train.checkpoint.state import CheckpointState
from edge_train.convert.difference import compare
from edge_train.convert.onnx_model import from_onnx, rewrite_model, to_onnx
from edge_train.convert.place import move_data
from edge_train.errors import ArtifactError, CheckpointError, EdgeTrainError, NominalStateError

BN = ZOO["conv_bn_maxpool_gap"]
MLP = ZOO["mlp_MSELoss"]


@pytest.fixture(autouse=True, params=[1024, 16], ids=["small", "large"])
def _from_where_on_data_stays_in_the_file(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The models of the zoo are small: every tensor takes the way of small and of large ones."""
    monkeypatch.setattr(model_file, "_LARGE", request.param)


def _without_weights(path: Path) -> onnx.ModelProto:
    model = onnx.load(path)
    for tensor in model.graph.initializer:
        tensor.ClearField("raw_data")
        tensor.ClearField("float_data")
        tensor.ClearField("data_location")
    return model


def _weights(path: Path) -> dict[str, np.ndarray]:
    return {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}


@pytest.mark.parametrize("case", ZOO_CASES)
def test_to_a_model_and_back(case: Case, tmp_path: Path) -> None:
    """The weights after training into the forward model, and out of it again."""
    state = CheckpointState.load_checkpoint(case.checkpoint)
    for name, array in case.final.items():
        state.parameters[name] = array
    CheckpointState.save_checkpoint(state, tmp_path / "trained")
    for external in (False, True):
        path = tmp_path / f"{external}.onnx"
        assert to_onnx(tmp_path / "trained", case.model, path, external_data=external) == ()
        onnx.checker.check_model(str(path))
        for name, array in values(tmp_path / "trained").items():
            np.testing.assert_array_equal(_weights(path)[name], array)
        from_onnx(path, tmp_path / "back", like=case.nominal_checkpoint)
        assert compare(tmp_path / "trained", tmp_path / "back").equal
    assert _without_weights(tmp_path / "False.onnx") == _without_weights(case.model)


@pytest.mark.parametrize("case", ALL_CASES)
def test_data_beside_the_model_and_back_inside(case: Artifacts, tmp_path: Path) -> None:
    source = case.model if isinstance(case, Case) else case.eval_model
    move_data(source, tmp_path / "beside.onnx", external_data=True)
    move_data(tmp_path / "beside.onnx", tmp_path / "inside.onnx", external_data=False)
    ours, theirs = _weights(tmp_path / "inside.onnx"), _weights(source)
    assert list(ours) == list(theirs)
    for name, array in theirs.items():
        np.testing.assert_array_equal(ours[name], array)
    assert _without_weights(tmp_path / "inside.onnx") == _without_weights(source)


@pytest.mark.parametrize("case", [BN, MLP, SEIZURE], ids=lambda c: c.name)
def test_an_eval_graph_becomes_a_model_for_inference(case: Artifacts, tmp_path: Path) -> None:
    """Parameters are no inputs any more; cut to an output, the labels are not asked for."""
    to_onnx(case.checkpoint, case.eval_model, tmp_path / "whole.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "whole.onnx")
    assert {value.name for value in session.get_inputs()} == set(case.feed)
    graph = onnx.load(case.eval_model).graph
    read = {name for node in graph.node for name in node.input}
    loss = [node.input[0] for node in graph.node if "Loss" in node.op_type]
    output = loss[0] if loss else next(o.name for o in graph.output if o.name not in read)
    to_onnx(case.checkpoint, case.eval_model, tmp_path / "cut.onnx", outputs=[output])
    cut = onnxruntime.InferenceSession(tmp_path / "cut.onnx")
    fed = {value.name: case.feed[value.name] for value in cut.get_inputs()}
    assert len(fed) < len(case.feed) or not loss
    assert np.isfinite(cut.run([output], fed)[0]).all()
    with pytest.raises(ValueError, match="no tensor named"):
        to_onnx(case.checkpoint, case.eval_model, tmp_path / "x", outputs=["nothing"])


def test_without_a_pattern_the_choice_is_that_of_generate_artifacts(tmp_path: Path) -> None:
    from_onnx(BN.model, tmp_path / "all")
    state = CheckpointState.load_checkpoint(tmp_path / "all")
    split = {name: parameter.requires_grad for name, parameter in state.parameters}
    assert not split["mu"]
    assert not split["va"]
    assert split["c1"]
    from_onnx(BN.model, tmp_path / "head", train=["*f"], freeze=["bf"])
    state = CheckpointState.load_checkpoint(tmp_path / "head")
    assert [name for name, p in state.parameters if p.requires_grad] == ["wf"]
    with pytest.raises(ArtifactError, match="did you mean"):
        from_onnx(BN.model, tmp_path / "no", train=["c2"])
    with pytest.raises(ValueError, match="the split is that of 'like'"):
        from_onnx(BN.model, tmp_path / "no", train=["c1"], like=BN.checkpoint)
    assert not (tmp_path / "no").exists()


def _model(*tensors: onnx.TensorProto) -> onnx.ModelProto:
    names = [tensor.name for tensor in tensors]
    node = helper.make_node("Custom", names, ["y"], domain="user")
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "g", [], [y], list(tensors))
    return helper.make_model(graph)


def test_half_and_double_weights_are_float32_while_trained(tmp_path: Path) -> None:
    """Masters: from the model exactly, back rounded to the model's type."""
    rng = np.random.default_rng(0)
    arrays = {kind: rng.standard_normal(1000).astype(kind) for kind in ("f2", "f8")}
    model = _model(*(numpy_helper.from_array(a, k) for k, a in arrays.items()))
    onnx.save(model, tmp_path / "m.onnx")
    from_onnx(tmp_path / "m.onnx", tmp_path / "c", train=["*"])
    for kind, array in arrays.items():
        got = values(tmp_path / "c")[kind]
        assert got.dtype == np.float32
        np.testing.assert_array_equal(got, array.astype(np.float32))
    new = {kind: rng.standard_normal(1000).astype("f4") for kind in arrays}
    new["f2"][0] = 1e6
    path = save_arrays(tmp_path / "new", **new)
    to_onnx(path, tmp_path / "m.onnx", tmp_path / "out.onnx")
    for kind, array in _weights(tmp_path / "out.onnx").items():
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(array, new[kind].astype(kind))


def test_what_does_not_fit(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(ArtifactError, match=r"no place for \['w1', 'b1', 'w2', 'b2'\] \(4 of 4"):
        to_onnx(MLP.checkpoint, SEIZURE.eval_model, out, partial=True)
    arrays = values(MLP.checkpoint)
    path = save_arrays(tmp_path / "more", **arrays, more=np.ones(1, "f4"))
    with pytest.raises(ArtifactError, match=r"no place for \['more'\] \(1 of 5"):
        to_onnx(path, MLP.model, out)
    assert to_onnx(path, MLP.model, tmp_path / "part", partial=True) == ("more",)
    for array, text in (
        (np.zeros((4, 5), "f4"), r"'w1' is float32 \[4, 5\], the model wants float32 \[5, 4\]"),
        (np.zeros((5, 4), "i8"), r"'w1' is int64 \[5, 4\], the model wants float32"),
    ):
        path = save_arrays(tmp_path / "wrong", **{**arrays, "w1": array})
        for model in (MLP.model, MLP.eval_model):
            with pytest.raises(CheckpointError, match=text):
                to_onnx(path, model, out)
    with pytest.raises(NominalStateError, match="an ONNX model needs data"):
        to_onnx(MLP.nominal_checkpoint, MLP.model, out)
    with pytest.raises(CheckpointError, match="'b1' is not there"):
        from_onnx(BN.model, out, like=MLP.checkpoint)
    assert not out.exists()


# ---- models that lie ------------------------------------------------------------------------


def _external(path: Path, change: Callable[[onnx.TensorProto], object]) -> Path:
    """A model whose data is in ``weights.bin``, with the first tensor's entries changed."""
    model = onnx.load(MLP.model)
    external_data_helper.convert_model_to_external_data(model, location="w.bin", size_threshold=0)
    onnx.save(model, path)
    model = onnx.load(path, load_external_data=False)
    change(model.graph.initializer[0])
    path.write_bytes(model.SerializeToString())
    return path


def _entry(key: str, value: str) -> Callable[[onnx.TensorProto], object]:
    def change(tensor: onnx.TensorProto) -> None:
        kept = [(e.key, e.value) for e in tensor.external_data if e.key != key]
        del tensor.external_data[:]
        for own, text in [*kept, (key, value)]:
            tensor.external_data.add(key=own, value=text)

    return change


ESCAPES: dict[str, tuple[Callable[[onnx.TensorProto], object], str]] = {
    "the folder above": (_entry("location", "../secret"), "not a file in the model's folder"),
    "an absolute path": (_entry("location", "/etc/hostname"), "not a file in the model's folder"),
    "a link": (_entry("location", "link"), "not a file in the model's folder"),
    "no name": (_entry("location", ""), "not a file in the model's folder"),
    "a NUL": (_entry("location", "w.bin\0"), "not a file in the model's folder"),
    "our own mark": (_entry("location", "\0placed"), "not a file in the model's folder"),
    "a folder": (_entry("location", "."), "not a file in the model's folder"),
    "a pipe": (_entry("location", "pipe"), "is a device or a pipe"),
    "a missing file": (_entry("location", "no"), "cannot be read"),
    "an offset behind the end": (_entry("offset", "99999"), "are needed, the file has"),
    "a negative offset": (_entry("offset", "-4"), "is no size"),
    "a short length": (_entry("length", "4"), "needs 80 bytes"),
    "a long length": (_entry("length", "99999999"), "are needed, the file has"),
    "another shape": (lambda tensor: tensor.dims.append(9), "tensor 'w1'"),
    "another type": (lambda tensor: setattr(tensor, "data_type", TensorProto.DOUBLE), "'w1'"),
}


@pytest.mark.parametrize("name", ESCAPES)
def test_external_data_that_lies_is_refused_by_the_tensors_name(name: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(bytes(1000))
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path / "secret")
    os.mkfifo(folder / "pipe")
    change, text = ESCAPES[name]
    model = _external(folder / "m.onnx", change)
    out = tmp_path / "out" / "x"
    for convert in (
        lambda: from_onnx(model, out, like=MLP.checkpoint),
        lambda: to_onnx(save_arrays(tmp_path / "c", w2=np.zeros((3, 5), "f4")), model, out),
        lambda: rewrite_model(model, out, external_data=False),
        lambda: rewrite_model(model, out, external_data=True),
    ):
        with pytest.raises(ArtifactError, match="tensor 'w1'") as caught:
            convert()
        assert text in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_external_data_needs_a_path(tmp_path: Path) -> None:
    model = _external(tmp_path / "m.onnx", lambda tensor: None)
    from_onnx(model, tmp_path / "out", like=MLP.checkpoint)
    assert compare(tmp_path / "out", MLP.checkpoint).equal
    with pytest.raises(ArtifactError, match="pass the model's path"):
        from_onnx(model.read_bytes(), tmp_path / "no", like=MLP.checkpoint)
    assert not (tmp_path / "no").exists()


def test_bytes_that_do_not_fill_a_tensor_and_names_that_are_there_twice(tmp_path: Path) -> None:
    short = numpy_helper.from_array(np.zeros(8, "f4"), "w")
    short.raw_data = short.raw_data[:-4]
    other = numpy_helper.from_array(np.zeros(8, "f4"), "w")
    float8 = TensorProto(name="w", data_type=TensorProto.FLOAT8E4M3FN, dims=[8], raw_data=bytes(8))
    like = save_arrays(tmp_path / "like", w=np.zeros(8, "f4"))
    for model, text in (
        (_model(short), r"tensor 'w' \[8\] needs 32 bytes, the model has 28"),
        (_model(other, other), "two initializers named 'w'"),
        (_model(float8), "tensor 'w' is data type 17, which a checkpoint cannot hold"),
    ):
        with pytest.raises(ArtifactError, match=text):
            from_onnx(model.SerializeToString(), tmp_path / "out", like=like)
    assert not (tmp_path / "out").exists()


def test_strings_go_along(tmp_path: Path) -> None:
    """A vocabulary that is a frozen parameter."""
    words = np.array(["a", "\u2603", ""], object)
    path = save_arrays(tmp_path / "c", {"words": words}, w=np.ones(2, "f4"))
    model = _model(
        helper.make_tensor("words", TensorProto.STRING, [3], [b"x", b"y", b"z"]),
        numpy_helper.from_array(np.zeros(2, "f4"), "w"),
    )
    to_onnx(path, model.SerializeToString(), tmp_path / "m.onnx")
    assert list(onnx.load(tmp_path / "m.onnx").graph.initializer[0].string_data) == [
        word.encode() for word in words
    ]
    from_onnx(tmp_path / "m.onnx", tmp_path / "back", like=path)
    assert compare(path, tmp_path / "back").equal
    model.graph.initializer[0].string_data[1] = b"\xff"
    with pytest.raises(ArtifactError, match="'words' has text that is not UTF-8"):
        from_onnx(model.SerializeToString(), tmp_path / "no", like=path)


def test_a_name_like_our_mark_is_a_name(tmp_path: Path) -> None:
    array = np.arange(8, dtype="f4")
    model = _model(numpy_helper.from_array(array, "\0placed"), numpy_helper.from_array(array, "w"))
    model.graph.node[0].doc_string = "\0placed"
    rewrite_model(model.SerializeToString(), tmp_path / "out", external_data=False)
    back = onnx.load(tmp_path / "out")
    assert back == model
    path = save_arrays(tmp_path / "c", w=array + 1)
    to_onnx(path, model.SerializeToString(), tmp_path / "out")
    assert [t[0] for t in _weights(tmp_path / "out").values()] == [0, 1]


@pytest.mark.parametrize("step", [23, pytest.param(1, marks=pytest.mark.slow)])
def test_cut_or_flipped_only_our_errors_escape(step: int, tmp_path: Path) -> None:
    data = MLP.model.read_bytes()
    refused = 0
    for end in range(0, len(data), step):
        try:
            from_onnx(data[:end], tmp_path / "out", like=MLP.checkpoint)
        except EdgeTrainError:
            refused += 1
            assert not (tmp_path / "out").exists()
        else:  # cut between two fields behind the graph: the weights are whole
            assert compare(tmp_path / "out", MLP.checkpoint).equal
            (tmp_path / "out").unlink()
    for at in range(0, len(data), step):
        flipped = bytearray(data)
        flipped[at] ^= 1 << at % 8
        for convert in (
            lambda bad: from_onnx(bad, tmp_path / "out", like=MLP.checkpoint),
            lambda bad: to_onnx(MLP.checkpoint, bad, tmp_path / "out"),
        ):
            try:
                convert(bytes(flipped))
            except EdgeTrainError:
                refused += 1
    assert refused > len(data) // step


def test_other_kinds_of_files(tmp_path: Path) -> None:
    for source, error, text in (
        (MLP.checkpoint, ArtifactError, "is a training checkpoint"),
        (b"", ArtifactError, "is empty"),
        (tmp_path, ArtifactError, "is a folder"),
        (tmp_path / "no", FileNotFoundError, "no such ONNX file"),
        (b"\x08\x07", ArtifactError, "has no graph"),
    ):
        with pytest.raises(error, match=text):
            from_onnx(source, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_a_model_too_large_for_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_file, "_LARGE", 16)
    move_data(MLP.model, tmp_path / "beside.onnx", external_data=True)
    monkeypatch.setattr(model_file, "LARGEST", 50)
    with pytest.raises(ArtifactError, match="bytes of tensors, one file holds at most 50"):
        move_data(tmp_path / "beside.onnx", tmp_path / "out", external_data=False)
    to_onnx(MLP.checkpoint, MLP.eval_model, tmp_path / "auto.onnx")
    assert (tmp_path / "auto.onnx.data").exists()
    assert not (tmp_path / "out").exists()
