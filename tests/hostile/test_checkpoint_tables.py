"""Checkpoints of well-formed FlatBuffers with arbitrary contents: fields absent, wrong or huge."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.craft import RawCheckpoint, RawGroup, RawProperty, RawState, RawTensor
from support.fuzz_targets import checkpoint, within_memory

names = st.one_of(st.none(), st.sampled_from(["w", "", "momentum0", "edge_train.data", "é\0"]))
sizes = st.one_of(
    st.integers(0, 3), st.sampled_from([-1, 2**31, 2**32 + 1, 2**62, -(2**63), 2**63 - 1])
)
dims = st.one_of(st.none(), st.just((2,)), st.lists(sizes, max_size=4), st.just([1] * 33))
types = st.one_of(st.none(), st.just(1), st.integers(-1, 25), st.sampled_from([2**31 - 1]))
offsets = st.one_of(st.none(), st.integers(-3, 5000), st.sampled_from([2**40, 2**63 - 1]))
raws = st.one_of(st.none(), st.just(bytes(8)), st.binary(max_size=40))


def many(items: st.SearchStrategy) -> st.SearchStrategy:
    return st.one_of(st.none(), st.lists(items, max_size=3))


tensors = st.builds(RawTensor, names, dims, types, raws, offsets)
states = st.builds(RawState, names, many(tensors))
groups = st.builds(RawGroup, names, many(states))
ints = st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1))
properties = st.tuples(
    many(st.builds(RawProperty, names, ints)),
    many(st.builds(RawProperty, names, st.one_of(st.none(), st.floats(width=32)))),
    many(st.builds(RawProperty, names, st.one_of(st.none(), st.sampled_from(["", "a", "00"])))),
)
checkpoints = st.builds(
    RawCheckpoint,
    version=st.sampled_from([2, 2, 2, None, 3]),
    trainable=many(tensors),
    frozen=many(tensors),
    module=st.sampled_from([True, True, True, False]),
    nominal=st.booleans(),
    external=st.booleans(),
    groups=many(groups),
    bag=st.one_of(st.none(), properties),
)


def _read(raw: RawCheckpoint) -> None:
    data = bytes(raw)
    assert within_memory(checkpoint, data) in (True, False)


@settings(max_examples=200, deadline=None)
@given(checkpoints)
def test_any_tables(raw: RawCheckpoint) -> None:
    _read(raw)


@pytest.mark.slow
@settings(max_examples=5000, deadline=None)
@given(checkpoints)
def test_any_tables_at_length(raw: RawCheckpoint) -> None:
    _read(raw)


def test_both_outcomes_are_reached() -> None:
    good = RawCheckpoint(trainable=[RawTensor()], groups=[RawGroup()])
    assert checkpoint(bytes(good))
    assert not checkpoint(bytes(RawCheckpoint(trainable=[RawTensor(data_type=99)])))
