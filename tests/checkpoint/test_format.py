"""Reading: the goldens, literal bytes, and one test for each input that is not a checkpoint."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.craft import RawCheckpoint, RawGroup, RawProperty, RawState, RawTensor
from support.zoo import GOLDEN, SEIZURE, ZOO

from edge_train.checkpoint.builder import Field
from edge_train.checkpoint.format import Checkpoint, read
from edge_train.checkpoint.layout import dumps
from edge_train.checkpoint.source import Span
from edge_train.checkpoint.tensor import Tensor
from edge_train.errors import CheckpointCorrupt, CheckpointError, CheckpointVersion

GOLDENS = [
    path
    for case in [*ZOO.values(), SEIZURE]
    for path in (case.checkpoint, case.nominal_checkpoint)
    if path.exists()
]
EMPTY = bytes.fromhex(
    "08000000" "4f445443"  # root table at byte 8, identifier
    "f4ffffff" "10000000" "02000000"  # Checkpoint: its vtable is at 20, module_state, version
    "0800" "0c00" "0800" "0400"  # the vtable of both tables
    "08000000" "08000000" "08000000"  # ModuleState: vtable, frozen_params, requires_grad_params
    "00000000" "00000000"  # two empty vectors
)  # fmt: skip


_LOADABLE = ("f4", "u1", "i1", "u2", "i2", "i4", "i8", "?", "f2", "f8", "u4", "u8")


def _ids(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


@pytest.mark.parametrize("path", GOLDENS, ids=_ids)
def test_a_golden_read_and_written_is_the_same_file(path: Path) -> None:
    data = path.read_bytes()
    assert dumps(read(data)) == data


@pytest.mark.parametrize("name", list(ZOO))
def test_a_golden_holds_the_values_before_the_first_step(name: str) -> None:
    checkpoint = read(ZOO[name].checkpoint.read_bytes())
    values = {t.name: t.array() for t in checkpoint.trainable + checkpoint.frozen}
    expected = ZOO[name].params(0)
    assert values.keys() == expected.keys()
    for key, array in expected.items():
        assert values[key].dtype == array.dtype
        np.testing.assert_array_equal(values[key], array)


def test_literal_bytes_of_an_empty_checkpoint() -> None:
    assert dumps(Checkpoint()) == EMPTY
    assert read(EMPTY) == Checkpoint()


def test_a_changed_value_is_seen() -> None:
    data = bytearray(ZOO["mlp_MSELoss"].checkpoint.read_bytes())
    tensor = read(data).trainable[0]
    assert isinstance(tensor.data, Span)
    before = tensor.array()
    data[tensor.data.offset] ^= 1
    assert not np.array_equal(read(data).trainable[0].array(), before)


def test_a_final_padding_byte_may_be_missing_and_anything_may_follow() -> None:
    data = ZOO["mlp_MSELoss"].checkpoint.read_bytes()
    for changed in (data[:-1], data + bytes(9), data + b"garbage"):
        assert dumps(read(changed)) == data


def test_a_module_state_may_be_absent() -> None:
    assert read(bytes(RawCheckpoint(module=False))) == Checkpoint()


def test_every_type_is_read_at_odd_offsets() -> None:
    """Case U047: int64 and double data need not be aligned in the file."""
    arrays = [np.arange(6).astype(dtype) for dtype in _LOADABLE]
    tensors = tuple(Tensor.of(f"t{i}", array) for i, array in enumerate(arrays))
    data = dumps(Checkpoint(trainable=tensors))
    for shift in range(8):
        shifted = memoryview(bytes(shift) + data)[shift:]
        for tensor, array in zip(read(shifted).trainable, arrays, strict=True):
            got = tensor.array()
            assert got.flags.aligned
            assert got.flags.writeable
            assert got.dtype == array.dtype
            np.testing.assert_array_equal(got, array)


def test_bytes_other_than_0_and_1_in_a_bool_tensor_become_true() -> None:
    raw = RawTensor(data_type=9, dims=(4,), raw=bytes([0, 1, 2, 255]))
    array = read(bytes(RawCheckpoint(trainable=[raw]))).trainable[0].array()
    assert array.view(np.uint8).tolist() == [0, 1, 1, 1]


def test_bfloat16_becomes_float32() -> None:
    """Copied by a tool the file keeps its bytes; a state has float32 and saves float32."""
    values = np.array([1.0, -2.5, np.inf, 2**-126, 3.140625], np.float32)
    raw = (values.view(np.uint32) >> 16).astype("<u2").tobytes()
    data = bytes(RawCheckpoint(trainable=[RawTensor(data_type=16, dims=(5, 1), raw=raw)]))
    for shift in range(4):
        tensor = read(memoryview(bytes(shift) + data)[shift:]).trainable[0]
        array = tensor.array()
        assert array.dtype == np.float32
        assert array.shape == (5, 1)
        assert array.flags.writeable
        np.testing.assert_array_equal(array[:, 0], values)
    again = read(dumps(read(data))).trainable[0]
    assert (again.data_type, again.nbytes) == (16, 10)
    assert Tensor.of("w", array).data_type == 1


def test_types_that_the_reference_writes_and_cannot_load() -> None:
    """float16, bfloat16 and string parameters, as its artifact step (1.19.2) stores them."""
    data = (GOLDEN / "odd_types" / "checkpoint").read_bytes()
    checkpoint = read(data)
    assert dumps(checkpoint) == data
    values = {t.name: t.array().tolist() for t in checkpoint.trainable + checkpoint.frozen}
    assert values == {
        "w": [1, 2, 3],
        "bf": [1, -2.5, np.inf],
        "labels": [["a", "é"], ["", "xyz"]],
        "h": [1, 2, 3],
    }


def test_string_tensors_are_read_and_written() -> None:
    array = np.array([["a", "é"], ["", "x\0y"]], object)
    data = dumps(Checkpoint(frozen=(Tensor.of("labels", array),), groups=()))
    tensor = read(data).frozen[0]
    assert tensor.data_type == 8
    got = tensor.array()
    assert got.tolist() == array.tolist()
    got[0, 0] = "longer"
    assert read(dumps(Checkpoint(frozen=(Tensor.of("labels", got),)))).frozen[0].strings == (
        *("longer", "é", ""),
        "x\0y",
    )
    assert Tensor.of("u", np.array(["ab", "c"])).strings == ("ab", "c")
    with pytest.raises(TypeError, match="tensor 'o' has a int among its items"):
        Tensor.of("o", np.array(["a", 1], object))
    assert read(data.replace(b"\xc3\xa9", b"ab")).frozen[0].array()[0, 1] == "ab"
    with pytest.raises(CheckpointCorrupt, match="not UTF-8"):
        read(data.replace(b"\xc3\xa9", b"\xff\xff"))


def test_a_zero_size_dimension_loads() -> None:
    raw = RawTensor(dims=(3, 0), raw=b"")
    assert read(bytes(RawCheckpoint(trainable=[raw]))).trainable[0].array().shape == (3, 0)


def test_a_later_kind_and_a_later_entry_of_a_property_win() -> None:
    bag = (
        [RawProperty("a", 1), RawProperty("b", 1), RawProperty("b", 2)],
        [RawProperty("a", 0.5), RawProperty("z", None)],
        None,
    )
    assert read(bytes(RawCheckpoint(bag=bag))).properties == {"a": 0.5, "b": 2, "z": 0.0}


def _with(**tensor: object) -> bytes:
    return bytes(RawCheckpoint(trainable=[RawTensor(**tensor)]))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", r"is empty \(0 bytes\)"),
        (b"\x08", "truncated: 1 of at least 8 bytes"),
        (EMPTY[:7], "truncated: 7 of at least 8 bytes"),
        (EMPTY[:8], "truncated: 8 of at least 12 bytes"),
        (bytes(64), "is no checkpoint: expected b'ODTC' at byte 4"),
        (b"\xff" * 64, "is no checkpoint"),
        (bytes(RawCheckpoint(identifier=b"ORTM")), "got b'ORTM'"),
        (bytes(4) + EMPTY[4:], "damaged at byte 0"),
        (b"\xff\xff\xff\xff" + EMPTY[4:], "the root table points 4 bytes out of a file of 48"),
        (bytes(RawCheckpoint(trainable=None)), "lacks the field 'requires_grad_params'"),
        (bytes(RawCheckpoint(frozen=None)), "lacks the field 'frozen_params'"),
        (_with(raw=bytes(7)), r"tensor 'w' has 7 bytes of data \(at byte \d+\), expected 8"),
        (_with(raw=bytes(9)), "tensor 'w' has 9 bytes of data"),
        (_with(raw=b"", dims=()), "tensor 'w' has 0 bytes of data.*, expected 4"),
        (_with(raw=None), "tensor 'w' has neither data nor a place in a data file"),
        (_with(raw=None, offset=0), "says it has none"),
        (_with(raw=None, offset=-2), "neither data nor a place"),
        (_with(data_type=8), "tensor 'w' has 0 strings, expected 2"),
        (_with(data_type=16), "tensor 'w' has 8 bytes of data .* expected 4 for bfloat16"),
        (_with(dims=None), "tensor 'w' lacks the field 'dims'"),
        (_with(name=None), r"requires_grad_params\[0\] lacks the field 'name'"),
        (_with(name=""), "a tensor has an empty name"),
        (_with(data_type=0), "tensor 'w' has data type 0"),
        (_with(data_type=99), "tensor 'w' has data type 99"),
        (_with(dims=(-1, -2)), r"dims \[-1, -2\], expected none below 0"),
        (_with(dims=(2**40, 2**40)), "too many elements"),
        (_with(dims=(0, 2**62, 4), raw=b""), "too many elements"),
        (_with(dims=(1,) * 33), "dims of tensor 'w' has 33 items, at most 32"),
        (bytes(RawCheckpoint(groups=[RawGroup(name=None)])), "lacks the field 'name'"),
        (
            bytes(RawCheckpoint(groups=[RawGroup(states=None)])),
            "optimizer group 'group0' lacks the field 'optimizer_states'",
        ),
        (bytes(RawCheckpoint(groups=[RawGroup(), RawGroup()])), "optimizer groups share a name"),
        (
            bytes(RawCheckpoint(groups=[RawGroup(states=[RawState(moments=None)])])),
            "the optimizer state of 'w' lacks the field 'momentums'",
        ),
        (
            bytes(RawCheckpoint(groups=[RawGroup(states=[RawState(name=None)])])),
            "lacks the field 'param_name'",
        ),
        (
            bytes(
                RawCheckpoint(
                    groups=[RawGroup(states=[RawState(moments=[RawTensor("m", raw=b"")])])]
                )
            ),
            "m of 'w' in group 'group0' has 0 bytes",
        ),
        (bytes(RawCheckpoint(bag=([RawProperty(None, 1)],))), "lacks the field 'name'"),
        (
            bytes(RawCheckpoint(bag=(None, None, [RawProperty("s", None)]))),
            "property 's' lacks the field 'value'",
        ),
    ],
)
def test_a_damaged_file_is_refused_by_name(data: bytes, text: str) -> None:
    with pytest.raises(CheckpointCorrupt, match=text):
        read(data)


@pytest.mark.parametrize("version", [None, 0, 3, -1])
def test_another_version_is_refused(version: int | None) -> None:
    with pytest.raises(CheckpointVersion, match=f"format version {version or 0}, expected 1 or 2"):
        read(bytes(RawCheckpoint(version=version)))


@pytest.mark.parametrize(
    ("number", "name"),
    [(14, "complex64"), (15, "complex128"), (17, "data type 17"), (22, "data type 22")],
)
def test_a_type_without_parameters_is_refused(number: int, name: str) -> None:
    with pytest.raises(CheckpointError, match=f"tensor 'w' is {name}, which cannot be loaded"):
        read(_with(data_type=number))


def test_an_onnx_file_is_refused() -> None:
    with pytest.raises(CheckpointCorrupt, match="is no checkpoint"):
        read(ZOO["mlp_MSELoss"].training_model.read_bytes())


def test_text_that_is_not_utf8_or_not_terminated_is_refused() -> None:
    data = _with(name="wxyz")
    with pytest.raises(CheckpointCorrupt, match="not UTF-8"):
        read(data.replace(b"wxyz", b"wx\xff\xff"))
    with pytest.raises(CheckpointCorrupt, match="not terminated"):
        read(data.replace(b"wxyz\0", b"wxyzq"))


@pytest.mark.parametrize("nominal_bytes", [0, 4])
def test_a_nominal_tensor_has_no_data_or_one_scalar(nominal_bytes: int) -> None:
    tensor = RawTensor(dims=(), raw=bytes(nominal_bytes))
    assert read(bytes(RawCheckpoint(trainable=[tensor], nominal=True))).is_nominal


def test_a_moment_in_a_nominal_file_has_data() -> None:
    """Also one with a name like the words before a parameter: it would be uninitialised memory."""
    for name in ("momentum0", "tensor x"):
        state = RawState(moments=[RawTensor(name, raw=b"")])
        file = RawCheckpoint(nominal=True, groups=[RawGroup(states=[state])])
        with pytest.raises(CheckpointCorrupt, match=r"0 bytes of data .* expected 8"):
            read(bytes(file))


def test_slots_of_later_releases_are_ignored() -> None:
    data = bytes(RawCheckpoint(extra=[Field(4, "q", 5), Field(9, "i", 6)]))
    assert data != EMPTY
    assert read(data) == Checkpoint()
