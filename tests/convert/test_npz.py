"""Checkpoint <-> .npz: lossless, NumPy's own files, and archives that lie."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.states import ALL_CASES, ALL_TYPES, rich, save, save_arrays, trained, values
from support.zoo import SEIZURE, ZOO, Artifacts

from edge_train.checkpoint.state import CheckpointState
from edge_train.convert.difference import compare
from edge_train.convert.npz import from_npz, to_npz
from edge_train.errors import CheckpointCorrupt, CheckpointError, EdgeTrainError, NominalStateError

MLP = ZOO["mlp_MSELoss"]


@pytest.mark.parametrize("case", ALL_CASES)
def test_there_and_back_gives_the_same_bytes(case: Artifacts, tmp_path: Path) -> None:
    to_npz(case.checkpoint, tmp_path / "x.npz")
    from_npz(tmp_path / "x.npz", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == case.checkpoint.read_bytes()


def test_a_trained_state_keeps_moments_step_and_properties(tmp_path: Path) -> None:
    path = trained(SEIZURE, tmp_path / "checkpoint")
    to_npz(path, tmp_path / "x")
    from_npz((tmp_path / "x").read_bytes(), tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == path.read_bytes()


def test_every_type_and_odd_name_survives_but_bfloat16_is_float32(tmp_path: Path) -> None:
    path = save(rich(), tmp_path / "checkpoint")
    to_npz(path, tmp_path / "x")
    from_npz(tmp_path / "x", tmp_path / "back")
    found = compare(path, tmp_path / "back")
    assert found.values == ()
    assert (found.only_a, found.only_b) == ((), ())
    assert list(found.other) == ["'half' is bfloat16 [3] in a, float32 [3] in b"]
    np.testing.assert_array_equal(values(tmp_path / "back")["half"], values(path)["half"])
    with np.load(tmp_path / "x") as arrays:
        np.testing.assert_array_equal(arrays["../../etc/passwd"], np.ones((2, 2)))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["back", "checkpoint", "x"]


def test_numpy_reads_what_is_written(tmp_path: Path) -> None:
    path = trained(MLP, tmp_path / "checkpoint")
    to_npz(path, tmp_path / "x.npz")
    with np.load(tmp_path / "x.npz", allow_pickle=False) as arrays:
        for name, array in values(path).items():
            np.testing.assert_array_equal(arrays[name], array)
        assert '"epoch": 3' in arrays["edge_train"].tobytes().decode()
    first = (tmp_path / "x.npz").read_bytes()
    to_npz(path, tmp_path / "x.npz")
    assert (tmp_path / "x.npz").read_bytes() == first  # of the state alone, not of the clock


@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
def test_numpys_own_files(write: Any, tmp_path: Path) -> None:
    """Compressed, in Fortran's order, big-endian, strided, of every type."""
    rng = np.random.default_rng(0)
    matrix = rng.standard_normal((300, 501)).astype(np.float32)
    arrays = {
        "plain": matrix,
        "transposed": matrix.T,
        "big": matrix.astype(">f4"),
        "both": np.asfortranarray(matrix.astype(">f4").reshape(3, 100, 501)),
        "scalar": np.float32(3),
        "empty": np.zeros((0, 3), np.float32),
        **{kind: rng.integers(0, 2, 7).astype(kind) for kind in ALL_TYPES},
    }
    write(tmp_path / "x.npz", **arrays)
    from_npz(tmp_path / "x.npz", tmp_path / "out", frozen=["scalar"])
    state = CheckpointState.load_checkpoint(tmp_path / "out")
    for name, array in arrays.items():
        np.testing.assert_array_equal(state.parameters[name].data, array)
        assert state.parameters[name].data.dtype == array.dtype.newbyteorder("=")
        expected = array.dtype.newbyteorder("=") == np.float32 and name != "scalar"
        assert state.parameters[name].requires_grad is expected


# ---- archives that lie ----------------------------------------------------------------------


def npy(array: Any, **fields: Any) -> bytes:
    """A .npy whose header says something else."""
    told = {"descr": "<f4", "fortran_order": False, "shape": array.shape, **fields}
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, told)
    return file.getvalue() + array.tobytes()


def headed(text: str) -> bytes:
    """A .npy with this text as its header."""
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode() + bytes(8)


TWO = np.ones(2, np.float32)
HOSTILE: dict[str, tuple[list[tuple[str, bytes]], str]] = {
    "another shape": ([("w.npy", npy(TWO, shape=(3,)))], "'w' has 8 bytes of data, expected 12"),
    "another type": ([("w.npy", npy(TWO, descr="<f8"))], "'w' has 8 bytes of data, expected 16"),
    "a negative size": ([("w.npy", npy(TWO, shape=(-2,)))], "tensor 'w'"),
    "a huge shape": ([("w.npy", npy(TWO, shape=(2**70,)))], "tensor 'w'"),
    "rank 33": ([("w.npy", npy(TWO[:1], shape=(1,) * 33))], "tensor 'w' has 33 dims"),
    "a pickle": ([("w.npy", npy(TWO, descr="|O"))], "'w' is object"),
    "text": ([("w.npy", npy(TWO, descr="<U2"))], "'w' is <U2"),
    "a record": ([("w.npy", npy(TWO, descr=[("a", "<f4")]))], "tensor 'w'"),
    "complex": ([("w.npy", npy(TWO, descr="<c8", shape=(1,)))], "tensor 'w' is complex64"),
    "no .npy inside": ([("w.npy", b"nonsense")], "tensor 'w' is damaged"),
    "version 9": ([("w.npy", b"\x93NUMPY\x09\x00" + bytes(80))], "tensor 'w' is damaged"),
    "code as header": (
        [("w.npy", b"\x93NUMPY\x01\x00\x10\x00__import__('os')\n")],
        "tensor 'w' is damaged",
    ),
    "an open bracket": ([("w.npy", headed("{'shape': (2,"))], "tensor 'w' is damaged"),
    "an open string": ([("w.npy", headed("'''abc"))], "tensor 'w' is damaged"),
    "nine thousand signs": ([("w.npy", headed("-" * 9000 + "1"))], "tensor 'w' is damaged"),
    "five thousand brackets": ([("w.npy", headed("[" * 5000))], "tensor 'w' is damaged"),
    "another file": ([("readme.txt", b"")], "'readme.txt' is no array"),
    "twice": ([("w.npy", npy(TWO)), ("w.npy", npy(TWO))], "'w' is there twice"),
    "no name": ([(".npy", npy(TWO))], "empty name"),
    "a description of floats": ([("edge_train.npy", npy(TWO))], "'edge_train' is no description"),
    "a description that is no text": (
        [("edge_train.npy", npy(np.array([255, 254], "u1"), descr="|u1"))],
        "'edge_train' is no text",
    ),
}


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("name", HOSTILE)
def test_an_archive_that_lies_is_refused_and_nothing_written(name: str, tmp_path: Path) -> None:
    members, text = HOSTILE[name]
    with zipfile.ZipFile(tmp_path / "x", "w") as archive:
        for member, data in members:
            archive.writestr(member, data)
    with pytest.raises(CheckpointError) as caught:
        from_npz(tmp_path / "x", tmp_path / "out")
    assert text in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_a_member_of_another_checksum(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", w=np.arange(5000, dtype=np.float32))
    data = bytearray((tmp_path / "x.npz").read_bytes())
    data[9000] ^= 1
    with pytest.raises(CheckpointCorrupt, match="tensor 'w' is damaged"):
        from_npz(bytes(data), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
def test_cut_or_flipped_only_our_errors_escape(write: Any, tmp_path: Path) -> None:
    """A flip may hit what nobody reads (the clock of a member); then the values are whole."""
    array = np.arange(20, dtype=np.float32)
    write(tmp_path / "x.npz", w=array)
    data = (tmp_path / "x.npz").read_bytes()
    for end in range(len(data)):
        with pytest.raises(CheckpointCorrupt):
            from_npz(data[:end], tmp_path / "out")
    assert not (tmp_path / "out").exists()
    refused = 0
    for at in range(len(data)):
        flipped = bytearray(data)
        flipped[at] ^= 1 << at % 8
        try:
            from_npz(bytes(flipped), tmp_path / "out")
        except EdgeTrainError:
            refused += 1
        else:
            assert next(iter(values(tmp_path / "out").values())).tobytes() == array.tobytes()
    assert refused > len(data) // 3


def test_checkpoints_that_have_no_such_form(tmp_path: Path) -> None:
    with pytest.raises(NominalStateError, match="fill it first"):
        to_npz(MLP.nominal_checkpoint, tmp_path / "x")
    for name, text in (("a\0b", "a ZIP cannot hold"), ("edge_train", "has a name that is kept")):
        path = save_arrays(tmp_path / "odd", **{name: np.ones(2)})
        with pytest.raises(CheckpointError, match=text):
            to_npz(path, tmp_path / "x")
    texts = save_arrays(tmp_path / "texts", words=np.array(["a"], object))
    with pytest.raises(CheckpointError, match="tensor 'words' holds strings"):
        to_npz(texts, tmp_path / "x")
    assert not (tmp_path / "x").exists()
