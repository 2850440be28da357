"""Checkpoint <-> safetensors: lossless, the official library's files, and files that lie."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from support.states import ALL_CASES, rich, save, save_arrays, trained, values
from support.zoo import SEIZURE, ZOO, Artifacts

from edge_train.checkpoint.state import CheckpointState
from edge_train.convert.safetensors import from_safetensors, to_safetensors
from edge_train.errors import CheckpointCorrupt, CheckpointError, NominalStateError

MLP = ZOO["mlp_MSELoss"]


@pytest.mark.parametrize("case", ALL_CASES)
def test_there_and_back_gives_the_same_bytes(case: Artifacts, tmp_path: Path) -> None:
    to_safetensors(case.checkpoint, tmp_path / "x.safetensors")
    from_safetensors(tmp_path / "x.safetensors", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == case.checkpoint.read_bytes()


@pytest.mark.parametrize("case", [MLP, SEIZURE], ids=lambda case: case.name)
def test_a_trained_state_keeps_moments_step_and_properties(case: Artifacts, tmp_path: Path) -> None:
    path = trained(case, tmp_path / "checkpoint")
    to_safetensors(path, tmp_path / "x")
    from_safetensors((tmp_path / "x").read_bytes(), tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == path.read_bytes()
    assert CheckpointState.load_checkpoint(tmp_path / "back").groups["group0"].step == 2


def test_every_type_and_odd_name_survives(tmp_path: Path) -> None:
    path = save(rich(), tmp_path / "checkpoint")
    to_safetensors(path, tmp_path / "x")
    from_safetensors(tmp_path / "x", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == path.read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["back", "checkpoint", "x"]


def test_the_official_library_reads_what_is_written(tmp_path: Path) -> None:
    path = trained(SEIZURE, tmp_path / "checkpoint")
    to_safetensors(path, tmp_path / "x.safetensors")
    there = load_file(tmp_path / "x.safetensors")
    for name, array in values(path).items():
        np.testing.assert_array_equal(there[name], array)
    moments = [name for name in there if name.startswith("edge_train.optimizer/group0/momentum1/")]
    assert len(moments) == len(CheckpointState.load_checkpoint(path).groups["group0"].moments)
    with safe_open(tmp_path / "x.safetensors", "numpy") as file:
        assert json.loads(file.metadata()["edge_train"])["properties"]["epoch"] == 3


def test_another_programs_file(tmp_path: Path) -> None:
    """Float32 is trained, the rest frozen, unless patterns or a checkpoint say otherwise."""
    arrays = {
        "b.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
        "a.bias": np.ones(3, np.float32),
        "count": np.array(7, np.int64),
    }
    save_file(arrays, tmp_path / "x", {"format": "np"})
    from_safetensors(tmp_path / "x", tmp_path / "plain")
    from_safetensors(tmp_path / "x", tmp_path / "patterns", frozen=["a.*"])
    frozen = {"b.weight": np.zeros((2, 3), "f4"), "count": np.int64(0)}
    like = save_arrays(tmp_path / "like", frozen, **{"a.bias": np.zeros(3, "f4")})
    from_safetensors(tmp_path / "x", tmp_path / "as like", like=like)
    splits = {"plain": {"a.bias", "b.weight"}, "patterns": {"b.weight"}, "as like": {"a.bias"}}
    for name, trainable in splits.items():
        state = CheckpointState.load_checkpoint(tmp_path / name)
        assert {n for n, p in state.parameters if p.requires_grad} == trainable
        for key, array in arrays.items():
            np.testing.assert_array_equal(state.parameters[key].data, array)
    with pytest.raises(ValueError, match="fits no tensor"):
        from_safetensors(tmp_path / "x", tmp_path / "no", frozen=["c.*"])
    with pytest.raises(ValueError, match="give one of the two"):
        from_safetensors(tmp_path / "x", tmp_path / "no", like=like, frozen=["a.*"])
    assert not (tmp_path / "no").exists()


def test_a_name_with_pattern_characters_means_itself(tmp_path: Path) -> None:
    arrays = {name: np.ones(2, np.float32) for name in ("W0", "W[0]", "a*b", "axb")}
    save_file(arrays, tmp_path / "x", {"format": "np"})
    for frozen, left in (
        (["W[0]"], {"W0", "a*b", "axb"}),
        (["a*b", "W0"], {"W[0]", "axb"}),
        (["W?", "a*"], {"W[0]"}),
    ):
        from_safetensors(tmp_path / "x", tmp_path / "out", frozen=frozen)
        state = CheckpointState.load_checkpoint(tmp_path / "out")
        assert {n for n, p in state.parameters if p.requires_grad} == left


def test_what_does_not_fit_the_model_is_listed(tmp_path: Path) -> None:
    save_file({"w": np.zeros(3, "f4"), "v": np.zeros(2, "f4")}, tmp_path / "x")
    like = save_arrays(tmp_path / "like", w=np.zeros((3, 1)), u=np.zeros(2))
    with pytest.raises(CheckpointError) as caught:
        from_safetensors(tmp_path / "x", tmp_path / "out", like=like)
    text = str(caught.value)
    for part in (
        "'w' is float32 [3], expected float64 [3, 1]",
        "'u' is not there",
        "'v' is no par",
    ):
        assert part in text
    assert not (tmp_path / "out").exists()


def test_moments_are_no_parameters_where_the_split_is_told(tmp_path: Path) -> None:
    path = trained(MLP, tmp_path / "checkpoint")
    to_safetensors(path, tmp_path / "x")
    from_safetensors(tmp_path / "x", tmp_path / "out", like=MLP.checkpoint)
    assert values(tmp_path / "out").keys() == values(path).keys()


# ---- files that lie -------------------------------------------------------------------------


def craft(header: Any, data: bytes = b"", padding: int = 0) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * padding
    return len(text).to_bytes(8, "little") + text + data


def entry(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


EIGHT = bytes(8)
HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "truncated: 0 of at least 8"),
    "a huge header": ((2**62).to_bytes(8, "little") + EIGHT, "at most"),
    "no header": ((100).to_bytes(8, "little"), "truncated: 8 of at least 108"),
    "no JSON": (craft(b"{{"), "no JSON text"),
    "not UTF-8": (craft(b'{"\xff": 1}'), "no JSON text"),
    "deep": (craft(b"[" * 100_000), "no JSON text"),
    "a list": (craft([]), "a list, no object"),
    "half a surrogate": (craft(b'{"\\ud800": 1}'), "no JSON text"),
    "twice": (
        craft(b'{"w": ' + json.dumps(entry()).encode() + b', "w": 1}', EIGHT),
        "'w' is there twice",
    ),
    "no fields": (craft({"w": {}}), "tensor 'w': expected dtype, shape"),
    "a number": (craft({"w": 5}), "tensor 'w': expected dtype, shape"),
    "three offsets": (craft({"w": entry(offsets=(0, 4, 8))}, EIGHT), "tensor 'w': expected dtype"),
    "negative": (craft({"w": entry(shape=(-2,))}, EIGHT), "tensor 'w' has shape"),
    "float": (craft({"w": entry(shape=(2.0,))}, EIGHT), "tensor 'w' has shape"),
    "true": (craft({"w": entry(shape=(True, 2))}, EIGHT), "tensor 'w' has shape"),
    "rank": (craft({"w": entry(shape=[1] * 33)}, EIGHT), "tensor 'w' has shape"),
    "beyond int64": (craft({"w": entry(shape=(2**64,))}, EIGHT), "tensor 'w' has shape"),
    "overflow": (craft({"w": entry(shape=(2**62, 4))}, EIGHT), "tensor 'w' has 8 bytes"),
    "wrong dtype": (craft({"w": entry("F64")}, EIGHT), "'w' has 8 bytes of data, expected 16"),
    "float8": (craft({"w": entry("F8_E4M3")}, EIGHT), "'w' is F8_E4M3"),
    "no dtype": (craft({"w": entry(["F32"])}, EIGHT), "'w'"),
    "a gap": (craft({"w": entry(offsets=(4, 12))}, bytes(12)), "'w' begins at byte 4"),
    "overlap": (
        craft({"v": entry(), "w": entry(offsets=(4, 12))}, bytes(12)),
        "'w' begins at byte 4 of the data, expected 8",
    ),
    "backwards": (craft({"w": entry(offsets=(8, 0))}, EIGHT), "tensor 'w' has -8 bytes"),
    "short": (craft({"w": entry()}, bytes(7)), "tensor 'w' ends at byte"),
    "more behind": (craft({"w": entry()}, bytes(9)), "1 bytes behind its last tensor"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_file_that_lies_is_refused_and_nothing_written(name: str, tmp_path: Path) -> None:
    data, text = HOSTILE[name]
    (tmp_path / "x").write_bytes(data)
    for source in (tmp_path / "x", data):
        with pytest.raises(CheckpointError, match="safetensors file") as caught:
            from_safetensors(source, tmp_path / "out")
        assert text in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_the_crafted_file_without_a_lie_is_read(tmp_path: Path) -> None:
    """Also at an odd offset (case U047)."""
    array = np.array([1.5, -2], "<f4")
    for padding in range(8):
        data = craft({"w": entry()}, array.tobytes(), padding)
        from_safetensors(data, tmp_path / "out")
        np.testing.assert_array_equal(values(tmp_path / "out")["w"], array)


def _described(change: Callable[[dict[str, Any]], object], tmp_path: Path) -> bytes:
    """A good file whose description was changed."""
    to_safetensors(trained(MLP, tmp_path / "checkpoint"), tmp_path / "x")
    data = (tmp_path / "x").read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    fields = json.loads(header["__metadata__"]["edge_train"])
    change(fields)
    header["__metadata__"]["edge_train"] = json.dumps(fields)
    return craft(header, data[8 + length :])


DESCRIPTIONS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "no list": (lambda f: f.pop("frozen"), "damaged"),
    "unknown tensor": (lambda f: f["trainable"].append("w9"), "'w9' is described and not there"),
    "one tensor twice": (lambda f: f["frozen"].append("w1"), "'w1' is described and not there"),
    "one left out": (lambda f: f["trainable"].remove("w1"), "its description lacks: ['w1']"),
    "a number as name": (lambda f: f["trainable"].append(5), "damaged"),
    "version": (lambda f: f.update(version=2), "its version is 2"),
    "step": (lambda f: f["groups"][0].update(step=2**63), "has step"),
    "step true": (lambda f: f["groups"][0].update(step=True), "has step"),
    "rate": (lambda f: f["groups"][0].update(initial_learning_rate="x"), "rate"),
    "property": (lambda f: f["properties"].update(a=[1]), "is no int64, float or string"),
    "large property": (lambda f: f["properties"].update(a=2**63), "is no int64"),
    "doc string": (lambda f: f["doc_strings"].update(w1=1), "is no string"),
    "groups": (lambda f: f.update(groups=5), "damaged"),
    "two groups": (lambda f: f["groups"].append({**f["groups"][0], "moments": []}), "share a name"),
}


@pytest.mark.parametrize("name", DESCRIPTIONS)
def test_a_description_that_lies(name: str, tmp_path: Path) -> None:
    change, text = DESCRIPTIONS[name]
    data = _described(change, tmp_path)
    with pytest.raises(CheckpointCorrupt) as caught:
        from_safetensors(data, tmp_path / "out")
    assert text in str(caught.value)
    assert not (tmp_path / "out").exists()
    from_safetensors(_described(len, tmp_path), tmp_path / "out")  # unchanged, it is taken


def test_cut_anywhere_only_our_error_escapes(tmp_path: Path) -> None:
    to_safetensors(MLP.checkpoint, tmp_path / "x")
    data = (tmp_path / "x").read_bytes()
    for end in range(len(data)):
        with pytest.raises(CheckpointCorrupt):
            from_safetensors(data[:end], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_flipped_anywhere_only_our_errors_escape(tmp_path: Path) -> None:
    to_safetensors(trained(MLP, tmp_path / "c"), tmp_path / "x")
    data = (tmp_path / "x").read_bytes()
    header = 8 + int.from_bytes(data[:8], "little")
    refused = 0
    for at in range(0, header, 3):
        flipped = bytearray(data)
        flipped[at] ^= 1 << at % 7
        try:
            from_safetensors(bytes(flipped), tmp_path / "out")
        except CheckpointError:
            refused += 1
    assert refused > header // 6


def test_checkpoints_that_have_no_such_form(tmp_path: Path) -> None:
    with pytest.raises(NominalStateError, match="fill it first"):
        to_safetensors(MLP.nominal_checkpoint, tmp_path / "x")
    texts = save_arrays(tmp_path / "texts", words=np.array(["a"], object))
    with pytest.raises(CheckpointError, match="tensor 'words' holds strings"):
        to_safetensors(texts, tmp_path / "x")
    for name in ("edge_train", "edge_train.w", "__metadata__"):
        path = save_arrays(tmp_path / "kept", **{name: np.ones(2)})
        with pytest.raises(CheckpointError, match=f"the parameter '{name}' has a name that"):
            to_safetensors(path, tmp_path / "x")
    assert not (tmp_path / "x").exists()
