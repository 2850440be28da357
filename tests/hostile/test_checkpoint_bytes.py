"""Damaged and hostile checkpoint bytes: only CheckpointError escapes, memory stays bounded."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.craft import RawCheckpoint, RawGroup, RawProperty, RawState, RawTensor
from support.zoo import ZOO

from edge_train.checkpoint.builder import Builder, Field
from edge_train.checkpoint.format import Checkpoint, Group
from edge_train.checkpoint.layout import dumps
from edge_train.checkpoint.state import CheckpointState
from edge_train.checkpoint.tensor import Tensor
from edge_train.errors import CheckpointCorrupt, CheckpointError

MOMENT = Tensor.of("momentum0", np.arange(2, dtype=np.float32))
SMALL = dumps(
    Checkpoint(
        trainable=(Tensor.of("w1", np.arange(2, dtype=np.float32)),),
        frozen=(Tensor.of("mean", np.ones((1, 2))), Tensor.of("count", np.array(3))),
        groups=(Group("group0", 5, 0.25, (("w1", (MOMENT,)),)),),
        properties={"epoch": 3, "best": 0.5, "tag": "text"},
    )
)
NOMINAL = ZOO["mlp_MSELoss"].nominal_checkpoint.read_bytes()


def _loads(data: bytes) -> bool:
    try:
        CheckpointState.load_checkpoint(data)
    except CheckpointError:
        return False
    return True


@pytest.mark.parametrize("data", [SMALL, NOMINAL], ids=["small", "nominal"])
def test_every_truncation_is_refused_or_loads(data: bytes) -> None:
    loaded = [length for length in range(len(data)) if _loads(data[:length])]
    end = len(data.rstrip(b"\0")) + 1  # the terminator of the last string is needed
    assert loaded == list(range(end, len(data)))


def test_truncation_is_called_by_its_name() -> None:
    for length in range(8, len(SMALL) - 8):
        with pytest.raises(CheckpointCorrupt, match=rf"truncated: {length} of at least \d+ bytes"):
            CheckpointState.load_checkpoint(SMALL[:length])


def test_single_bit_flips_of_every_byte() -> None:
    refused = 0
    for position in range(len(SMALL)):
        for bit in range(8):
            data = bytearray(SMALL)
            data[position] ^= 1 << bit
            refused += not _loads(bytes(data))
    assert refused > len(SMALL)  # most bits of the tables matter


@pytest.mark.parametrize("value", [0, 0xFF, 0x7F, 0x80])
def test_every_word_overwritten(value: int) -> None:
    refused = 0
    for position in range(len(SMALL) - 3):
        data = SMALL[:position] + bytes([value] * 4) + SMALL[position + 4 :]
        refused += not _loads(data)
    assert refused > 20


@pytest.mark.slow
@settings(max_examples=3000, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, len(SMALL) - 8), st.binary(min_size=1, max_size=8)), max_size=6
    )
)
def test_random_damage(patches: list[tuple[int, bytes]]) -> None:
    data = bytearray(SMALL)
    for position, patch in patches:
        data[position : position + len(patch)] = patch
    assert _loads(bytes(data)) in (True, False)


@pytest.mark.slow
@given(st.binary(max_size=200))
def test_random_bytes_with_a_head(tail: bytes) -> None:
    assert _loads(b"\x08\0\0\0ODTC" + tail) in (True, False)


def _peak(data: bytes) -> int:
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointCorrupt):
            CheckpointState.load_checkpoint(data)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def _shared(count: int, tensor_bytes: int) -> bytes:
    """``count`` references to one tensor: a small file that asks for a lot of memory."""
    builder = Builder()
    dims = (tensor_bytes // 4,)
    tensor = RawTensor(dims=dims, raw=bytes(tensor_bytes)).add(builder)
    lists = [builder.references([tensor] * count), builder.references([])]
    module = builder.table([Field(slot, "", at) for slot, at in enumerate(lists)])
    builder.finish(builder.table([Field(0, "i", 2), Field(1, "", module)]), b"ODTC")
    return b"".join(builder.blocks())


def test_one_tensor_referred_to_many_times() -> None:
    data = _shared(10_000, 100_000)
    assert _peak(data) < 8 * len(data)


def test_nested_vectors_shared_by_every_level() -> None:
    builder = Builder()
    moment = RawTensor("m").add(builder)
    moments = builder.references([moment] * 500)
    name = builder.text("w")
    state = builder.table([Field(0, "", name), Field(1, "", moments)])
    states = builder.references([state] * 500)
    group = builder.table([Field(0, "", name), Field(3, "", states)])
    groups = builder.references([group] * 500)
    builder.finish(builder.table([Field(0, "i", 2), Field(2, "", groups)]), b"ODTC")
    data = b"".join(builder.blocks())
    with pytest.raises(CheckpointCorrupt, match=r"more tables than|share the same bytes"):
        CheckpointState.load_checkpoint(data)
    assert _peak(data) < 2_000_000


def test_huge_counts_allocate_nothing() -> None:
    for count in (2**31 - 1, 2**32 - 1, len(SMALL)):
        patched = SMALL.replace(struct.pack("<I", 4) + b"text", struct.pack("<I", count) + b"text")
        assert patched != SMALL
        assert _peak(patched) < 500_000


def test_huge_dims_allocate_nothing() -> None:
    for dims in [(2**31,), (2**20, 2**20), (1, 2**62), (-(2**63),)]:
        data = bytes(RawCheckpoint(trainable=[RawTensor(dims=dims)]))
        assert _peak(data) < 200_000


def test_an_offset_to_itself_does_not_loop() -> None:
    data = bytearray(SMALL)
    root = struct.unpack_from("<I", data)[0]
    data[root : root + 4] = bytes(4)  # the vtable is the table itself
    assert not _loads(bytes(data))


def test_no_data_file_is_opened_for_bytes(tmp_path: Path) -> None:
    data = bytes(RawCheckpoint(external=True, trainable=[RawTensor(raw=None, offset=0)]))
    with pytest.raises(CheckpointError, match="load it by its path"):
        CheckpointState.load_checkpoint(data)


def test_everything_odd_at_once_round_trips() -> None:
    """Sharing that honest writers do (equal strings, equal tensors) stays allowed."""
    data = bytes(
        RawCheckpoint(
            trainable=[RawTensor("w"), RawTensor("w", raw=b"\0\0\x80?" * 2)],
            frozen=[RawTensor("w"), RawTensor("v", dims=(), data_type=7)],
            groups=[RawGroup("b"), RawGroup("a", states=[RawState(), RawState()])],
            bag=([RawProperty("", 3)], [RawProperty("nan", float("nan"))], None),
        )
    )
    state = CheckpointState.load_checkpoint(data)
    assert [(n, p.requires_grad) for n, p in state.parameters] == [("v", False), ("w", True)]
    assert state.parameters["w"].data.tolist() == [0, 0]  # the first of equal names
    assert list(state.groups) == ["b", "a"]
