"""A checkpoint as a checkpoint: data inside or beside, old folders, less in it, other names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.craft import RawCheckpoint, RawGroup, RawState, RawTensor
from support.states import ALL_CASES, rich, save, save_arrays, trained, values
from support.zoo import GOLDEN, ZOO, Artifacts

from edge_train.checkpoint import files
from edge_train.checkpoint.format import DATA_IDENTITY
from edge_train.checkpoint.state import CheckpointState
from edge_train.convert import intake
from edge_train.convert.average import average
from edge_train.convert.combine import merge, transfer
from edge_train.convert.difference import compare
from edge_train.convert.npz import to_npz
from edge_train.convert.place import is_checkpoint, move_data
from edge_train.convert.rewrite import rename, rewrite
from edge_train.convert.safetensors import to_safetensors
from edge_train.errors import CheckpointCorrupt, CheckpointError

MLP = ZOO["mlp_MSELoss"]


@pytest.mark.parametrize("case", ALL_CASES)
def test_inline_and_external_and_back(case: Artifacts, tmp_path: Path) -> None:
    move_data(case.checkpoint, tmp_path / "out", external_data=True)
    assert (tmp_path / "out.data").stat().st_size > (tmp_path / "out").stat().st_size // 20
    assert compare(case.checkpoint, tmp_path / "out").equal
    move_data(tmp_path / "out", tmp_path / "back", external_data=False)
    assert (tmp_path / "back").read_bytes() == case.checkpoint.read_bytes()
    assert is_checkpoint(case.checkpoint.read_bytes())


def test_in_place(tmp_path: Path) -> None:
    """The file is read while its successor is written."""
    path = save(rich(), tmp_path / "checkpoint")
    first = path.read_bytes()
    for external in (True, True, False):
        move_data(path, path, external_data=external)
        with files.open_checkpoint(path) as checkpoint:
            assert checkpoint.has_external_data is external
            assert (DATA_IDENTITY in checkpoint.properties) is external
    assert path.read_bytes() == first


def test_offsets_of_every_kind_in_the_data_file(tmp_path: Path) -> None:
    """U047: odd offsets, of 8-byte types too."""
    floats, longs = np.array([1.5, -2, 3], "<f4"), np.array([2**60, -5], "<i8")
    for shift in range(8):
        head = bytes(shift)
        (tmp_path / "c.data").write_bytes(head + floats.tobytes() + longs.tobytes())
        tensors = (
            RawTensor("f", (3,), 1, None, shift),
            RawTensor("i", (2,), 7, None, shift + 12),
        )
        raw = RawCheckpoint(trainable=tensors[:1], frozen=tensors[1:], external=True)
        (tmp_path / "c").write_bytes(bytes(raw))
        rewrite(tmp_path / "c", tmp_path / "inline", data_file=False)
        got = values(tmp_path / "inline")
        np.testing.assert_array_equal(got["f"], floats)
        np.testing.assert_array_equal(got["i"], longs)
        average([tmp_path / "c"], tmp_path / "mean")
        assert compare(tmp_path / "c", tmp_path / "mean").equal


def test_u046_what_no_file_can_hold_inline_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U046: offsets in the file end at 2 GiB; the limit is told before anything is written."""
    monkeypatch.setattr(files, "INLINE_LIMIT", 100)
    with pytest.raises(CheckpointError, match="172 bytes of tensors; one file holds less than 100"):
        rewrite(MLP.checkpoint, tmp_path / "out", data_file=False)
    assert not list(tmp_path.iterdir())
    rewrite(MLP.checkpoint, tmp_path / "out")  # unasked, it gets a data file
    assert (tmp_path / "out.data").exists()
    assert compare(MLP.checkpoint, tmp_path / "out").equal


@pytest.mark.parametrize("name", ["checkpoint", "trained"])
def test_old_folders_become_files_of_today(name: str, tmp_path: Path) -> None:
    folder = GOLDEN / "legacy" / name
    rewrite(folder, tmp_path / "out")
    assert compare(folder, tmp_path / "out").equal
    state, before = (CheckpointState.load_checkpoint(p) for p in (tmp_path / "out", folder))
    assert len(state.parameters) == len(before.parameters) > 0
    assert is_checkpoint(folder)


def test_optimizer_state_and_properties_are_left_out(tmp_path: Path) -> None:
    path = trained(MLP, tmp_path / "checkpoint")
    rewrite(path, tmp_path / "no optimizer", optimizer=False)
    rewrite(path, tmp_path / "bare", optimizer=False, properties=False)
    for name, properties in (("no optimizer", 3), ("bare", 0)):
        state = CheckpointState.load_checkpoint(tmp_path / name)
        assert (state.groups, len(state.properties)) == ({}, properties)
    rewrite(path, tmp_path / "whole")
    assert (tmp_path / "whole").read_bytes() == path.read_bytes()
    assert compare(MLP.checkpoint, tmp_path / "bare").largest > 0  # the trained weights


# ---- names ----------------------------------------------------------------------------------


def test_parameters_get_other_names_and_their_moments_too(tmp_path: Path) -> None:
    path = trained(MLP, tmp_path / "checkpoint")
    rename(path, tmp_path / "out", {"w*": "module.w*", "w2": "head", "b1": "bias"})
    state = CheckpointState.load_checkpoint(tmp_path / "out")
    names = ["b2", "bias", "head", "module.w1"]
    assert [name for name, _ in state.parameters] == names
    assert sorted(state.groups["group0"].moments) == names
    rename(tmp_path / "out", tmp_path / "back", {"module.*": "*", "head": "w2", "bias": "b1"})
    assert compare(path, tmp_path / "back").equal
    rename(path, tmp_path / "swapped", {"w1": "w2", "w2": "w1"})
    assert values(tmp_path / "swapped")["w1"].shape == (3, 5)


@pytest.mark.parametrize(
    ("names", "error", "text"),
    [
        ({"w3": "x"}, ValueError, "parameter 'w3' not found; did you mean"),
        ({"v*": "x*"}, ValueError, r"parameter 'v\*' not found"),
        ({"w*": "x"}, ValueError, "either both end in"),
        ({"w1": "x*"}, ValueError, "either both end in"),
        ({"w1": "w2"}, CheckpointCorrupt, "'w2' is there twice"),
        ({"w1": ""}, CheckpointCorrupt, "a tensor has an empty name"),
    ],
)
def test_names_that_cannot_be_given(
    names: dict[str, str], error: type[Exception], text: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=text):
        rename(MLP.checkpoint, tmp_path / "out", names)
    assert not list(tmp_path.iterdir())


# ---- checkpoints that lie, to every converter -----------------------------------------------

MOMENT = RawTensor("momentum0")
TWICE = {
    "in one list": (RawCheckpoint(trainable=[RawTensor(), RawTensor()]), "parameter 'w'"),
    "trained and frozen": (
        RawCheckpoint(trainable=[RawTensor()], frozen=[RawTensor()]),
        "parameter 'w'",
    ),
    "the state of a parameter": (
        RawCheckpoint(trainable=[RawTensor()], groups=[RawGroup(states=[RawState(), RawState()])]),
        "the state of 'w'",
    ),
    "a moment": (
        RawCheckpoint(
            trainable=[RawTensor()], groups=[RawGroup(states=[RawState("w", [MOMENT, MOMENT])])]
        ),
        "'momentum0'",
    ),
}
CONVERTERS = {
    "rewrite": rewrite,
    "external": lambda source, out: rewrite(source, out, data_file=True),
    "rename": lambda source, out: rename(source, out, {"w": "v"}),
    "safetensors": to_safetensors,
    "npz": to_npz,
    "merge": lambda source, out: merge([source], out),
    "transfer": lambda source, out: transfer(source, MLP.checkpoint, out),
    "transfer into": lambda source, out: transfer(MLP.checkpoint, source, out),
    "average": lambda source, out: average([source, source], out),
}


@pytest.mark.parametrize("converter", CONVERTERS)
@pytest.mark.parametrize("name", TWICE)
def test_what_is_there_twice_is_named(name: str, converter: str, tmp_path: Path) -> None:
    """A session takes the first of two, a converter does not choose."""
    raw, text = TWICE[name]
    with pytest.raises(CheckpointCorrupt, match="twice") as caught:
        CONVERTERS[converter](bytes(raw), tmp_path / "out")
    assert text in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("converter", CONVERTERS)
def test_damage_is_named_and_nothing_written(converter: str, tmp_path: Path) -> None:
    """Truncated; bytes that do not fill the shape; types that cannot be; a missing data file."""
    good = save_arrays(tmp_path / "good", w=np.arange(8, dtype="f4")).read_bytes()
    lies = {
        "truncated": good[:-20],
        "is no checkpoint": b"x" * 100,
        "tensor 'w' has 8 bytes": bytes(RawCheckpoint(trainable=[RawTensor(dims=(3,))])),
        "tensor 'w' is complex64": bytes(RawCheckpoint(trainable=[RawTensor(data_type=14)])),
        "tensor 'w' has data type 99": bytes(RawCheckpoint(trainable=[RawTensor(data_type=99)])),
        "tensor 'w' has dims [-2]": bytes(RawCheckpoint(trainable=[RawTensor(dims=(-2,))])),
        "keeps tensor data in": bytes(RawCheckpoint(trainable=[RawTensor()], external=True)),
    }
    (tmp_path / "good").unlink()
    for text, data in lies.items():
        (tmp_path / "bad").write_bytes(data)
        for source in (tmp_path / "bad", data):
            with pytest.raises(CheckpointError) as caught:
                CONVERTERS[converter](source, tmp_path / "out")
            assert text in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["bad"]


def test_a_data_file_that_is_too_short(tmp_path: Path) -> None:
    move_data(MLP.checkpoint, tmp_path / "c", external_data=True)
    data = (tmp_path / "c.data").read_bytes()
    (tmp_path / "c.data").write_bytes(data[:-20])
    with pytest.raises(CheckpointCorrupt, match="tensor 'b2' ends at byte"):
        rewrite(tmp_path / "c", tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c", "c.data"]


def test_how_sources_are_named(tmp_path: Path) -> None:
    with (tmp_path / "x").open("wb") as file:
        assert intake.label_of(file) == f"'{tmp_path / 'x'}'"
    assert intake.label_of(b"") == "<bytes>"
