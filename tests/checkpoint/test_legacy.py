"""Case U007: the folder format of releases before 1.16, read and saved as one file."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.folders import scalar, sequence, varint, write_folder
from support.snapshot import differences, snapshot
from support.zoo import GOLDEN, ZOO

from edge_train.api import CheckpointState, Module, Optimizer
from edge_train.checkpoint import files
from edge_train.checkpoint.layout import dumps
from edge_train.checkpoint.state import OptimizerGroup
from edge_train.errors import CheckpointCorrupt, CheckpointError

LEGACY = GOLDEN / "legacy"
PARAMETERS = "paramtrain_tensors.pbseq"
load, save = CheckpointState.load_checkpoint, CheckpointState.save_checkpoint


def _module() -> tuple[Module, Optimizer]:
    state = load(LEGACY / "checkpoint")
    module = Module(LEGACY / "training_model.onnx", state, LEGACY / "eval_model.onnx")
    return module, Optimizer(LEGACY / "optimizer_model.onnx", module)


def test_release_1_14_trains_on_as_it_did_there() -> None:
    run = np.load(LEGACY / "run.npz")
    module, optimizer = _module()
    for expected in run["losses"]:
        np.testing.assert_allclose(module(run["x"], run["target"]), expected, rtol=2e-6)
        optimizer.step()
        module.lazy_reset_grad()
    trained = load(LEGACY / "trained")
    moved = load(LEGACY / "checkpoint").parameters["w1"].data - trained.parameters["w1"].data
    assert np.abs(moved).max() > 1e-3
    for name, parameter in module.state.parameters:
        np.testing.assert_allclose(parameter.data, trained.parameters[name].data, atol=5e-8)
        assert parameter.requires_grad == (name != "b1")


def _full_state(name: str) -> CheckpointState:
    state = load(ZOO[name].checkpoint)
    moments = {
        n: {"momentum0": np.asarray(p.data) * 2, "momentum1": np.abs(p.data)}
        for n, p in state.parameters
        if p.requires_grad
    }
    state.groups["group0"] = OptimizerGroup("group0", 2**40, 0.25, moments)
    for key, value in {"epoch": 3, "best": 0.5, "tag": "é", "none": 0}.items():
        state.properties[key] = value
    return state


@pytest.mark.parametrize("name", list(ZOO))
def test_every_state_of_the_zoo_as_a_folder(name: str, tmp_path: Path) -> None:
    state = _full_state(name)
    write_folder(state, tmp_path / "folder")
    got = load(tmp_path / "folder")
    assert not differences(snapshot(got), snapshot(state))
    save(got, tmp_path / "one")
    save(state, tmp_path / "two")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_a_changed_value_is_seen(tmp_path: Path) -> None:
    state = _full_state("mlp_MSELoss")
    write_folder(state, tmp_path / "folder")
    state.groups["group0"].moments["w1"]["momentum1"][0, 0] += 1
    assert differences(snapshot(load(tmp_path / "folder")), snapshot(state)) == ["momentum1 w1"]


def test_a_save_never_goes_into_the_folder(tmp_path: Path) -> None:
    shutil.copytree(LEGACY / "trained", tmp_path / "folder")
    state = load(tmp_path / "folder")
    with pytest.raises(CheckpointError, match="is a folder"):
        save(state, tmp_path / "folder")
    assert sorted(os.listdir(tmp_path / "folder")) == sorted(os.listdir(LEGACY / "trained"))


def test_typed_data_of_initializers_is_read(tmp_path: Path) -> None:
    half = np.array([1.5, -2], np.float16)
    protos = [
        helper.make_tensor("float", TensorProto.FLOAT, (2, 1), [0.5, -0.0]),
        helper.make_tensor("int", TensorProto.INT64, (3,), [-1, 2**62, 0]),
        helper.make_tensor("half", TensorProto.FLOAT16, (2,), half),
        helper.make_tensor("bool", TensorProto.BOOL, (2,), [True, False]),
        helper.make_tensor("text", TensorProto.STRING, (2,), [b"a", b""]),
        numpy_helper.from_array(np.zeros((0, 2)), "empty"),
    ]
    (tmp_path / PARAMETERS).write_bytes(sequence(p.SerializeToString() for p in protos))
    for proto in protos:
        expected = numpy_helper.to_array(proto)
        got = load(tmp_path).parameters[proto.name].data
        np.testing.assert_array_equal(got, expected.astype(str) if proto.name == "text" else got)
        assert got.shape == expected.shape
        if proto.name != "text":
            np.testing.assert_array_equal(got, expected)
            assert got.dtype == expected.dtype


def test_other_files_and_folders_are_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    shutil.copytree(LEGACY / "trained", folder)
    (folder / ".hidden.pbseq").write_bytes(b"\xff")
    (folder / "notes.txt").write_bytes(b"\xff")
    (folder / "unknown.pbseq").write_bytes(b"\x00")
    assert len(load(folder).parameters) == 4
    assert load(str(folder)).groups == {}


def test_a_group_with_an_underscore_and_without_properties(tmp_path: Path) -> None:
    shutil.copy(LEGACY / "trained" / PARAMETERS, tmp_path)
    moment = numpy_helper.from_array(np.ones(3, np.float32), "b2").SerializeToString()
    (tmp_path / "optim_my_group_momentum0_tensors.pbseq").write_bytes(sequence([moment]))
    group = load(tmp_path).groups["my_group"]
    assert (group.step, group.initial_learning_rate) == (0, 0.001)
    assert group.moments["b2"]["momentum0"].tolist() == [1, 1, 1]


GOOD = (LEGACY / "checkpoint" / PARAMETERS).read_bytes()


@pytest.mark.parametrize(
    ("name", "data", "text"),
    [
        ("x.pbseq", GOOD, r"not in the folder format of older releases \(before 1.16\)"),
        (PARAMETERS, b"", "truncated: 0 of at least 1 bytes"),
        (PARAMETERS, GOOD[:-1], f"truncated: {len(GOOD) - 1} of at least {len(GOOD)} bytes"),
        (PARAMETERS, GOOD + b"\0", "1 bytes follow the last of 3 tensors"),
        (PARAMETERS, varint(2**62), "tensors are said to be in 9 bytes"),
        (PARAMETERS, b"\xff" * 11, "a varint of more than 10 bytes"),
        (PARAMETERS, sequence([b""]), "a tensor without a name"),
        (PARAMETERS, sequence([b"\x42\xff\xff\xff\xff\x7f"]), "do not fit into the 0 left"),
        (PARAMETERS, sequence([b"\x0b"]), "no protobuf field has wire type 3"),
        (PARAMETERS, sequence([b"\x42\x02\xff\xff"]), "not UTF-8"),
        (PARAMETERS, sequence([b"\x08\x01" * 33]), "more than 32 dims"),
        (PARAMETERS, sequence([b"\x42\x01w"]), "tensor 'w' has data type 0"),
        (PARAMETERS, sequence([b"\x42\x01w\x10\x01\x08\x03\x4a\x04abcd"]), "has 4 bytes of data"),
        (PARAMETERS, sequence([b"\x42\x01w\x10\x01\x70\x01"]), "keeps its data in another file"),
        (PARAMETERS, sequence([b"\x42\x01w\x10\x01"]), "neither data nor a place"),
        (PARAMETERS, sequence([b"\x42\x01w\x10\x08"]), "has 0 strings, expected 1"),
        (PARAMETERS, sequence([b"\x42\x01w\x10\x01\x22\x03abc"]), "not a TensorProto"),
    ],
)
def test_a_damaged_folder_is_refused(tmp_path: Path, name: str, data: bytes, text: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(CheckpointError, match=text):
        load(tmp_path)


@pytest.mark.parametrize(
    ("name", "messages", "text"),
    [
        ("optim_x_tensors.pbseq", [], "expected a name optim_<group>_<moment>_tensors"),
        ("optim_g_properties.pbseq", [scalar("builtin.step", 0.5)], "has step 0.5"),
        ("custom_properties.pbseq", [b"\x42\x01p\x10\x02"], "property 'p' is uint8"),
        ("custom_properties.pbseq", [b"\x42\x01p\x10\x01"], "has 0 bytes of data, expected 4"),
        ("custom_properties.pbseq", [b"\x42\x01p\x10\x08"], "property 'p' is string, expected one"),
    ],
)
def test_damaged_state_beside_good_parameters(
    tmp_path: Path, name: str, messages: list[bytes], text: str
) -> None:
    shutil.copy(LEGACY / "trained" / PARAMETERS, tmp_path)
    (tmp_path / name).write_bytes(sequence(messages))
    with pytest.raises(CheckpointError, match=text):
        load(tmp_path)


def test_every_truncation_and_bit_flip(tmp_path: Path) -> None:
    path = tmp_path / PARAMETERS
    refused = 0
    for length in range(len(GOOD)):
        path.write_bytes(GOOD[:length])
        with pytest.raises(CheckpointError):
            load(tmp_path)
    for position in range(len(GOOD)):
        data = bytearray(GOOD)
        data[position] ^= 1 << position % 8
        path.write_bytes(data)
        try:
            load(tmp_path)
        except CheckpointError:
            refused += 1
    assert refused > 10


def test_what_is_no_regular_file_is_refused_before_it_is_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / PARAMETERS)
    with pytest.raises(CheckpointError, match="a device or a pipe"):
        load(tmp_path)


def test_too_many_files_are_refused(tmp_path: Path) -> None:
    for index in range(257):
        (tmp_path / f"paramtrain{index}.pbseq").write_bytes(b"\0")
    with pytest.raises(CheckpointError, match=r"has 257 \.pbseq files, at most 256"):
        load(tmp_path)


def test_an_open_folder_can_be_written_as_bytes(tmp_path: Path) -> None:
    with files.open_checkpoint(LEGACY / "trained") as checkpoint:
        data = dumps(checkpoint)
    assert not differences(snapshot(load(data)), snapshot(load(LEGACY / "trained")))
    with pytest.raises(CheckpointCorrupt, match="is no checkpoint"):
        load(GOOD)
