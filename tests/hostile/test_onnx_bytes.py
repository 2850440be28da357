"""Damaged ONNX files: cut short, bits flipped, absurd contents. Only ArtifactError may escape."""

from __future__ import annotations

import random

import numpy as np
import pytest
from support.fuzz_targets import onnx as survives
from support.onnx_messages import RandomMessages, nested_graphs
from support.zoo import ZOO

from edge_train.errors import ArtifactError
from edge_train.graph import ir, onnx_codec, opset

SMALL = ZOO["mlp_MSELoss"].training_model.read_bytes()


def _flipped(data: bytes, rng: random.Random) -> bytes:
    damaged = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
    return bytes(damaged)


def test_the_whole_file_survives() -> None:
    assert survives(SMALL)


def test_cut_short() -> None:
    outcomes = [survives(SMALL[:end]) for end in range(0, len(SMALL), 23)]
    assert outcomes.count(False) > len(outcomes) // 2


def test_bits_flipped() -> None:
    rng = random.Random(1)
    outcomes = [survives(_flipped(SMALL, rng)) for _ in range(150)]
    assert {True, False} == set(outcomes)


def test_random_models_with_bits_flipped() -> None:
    rng = random.Random(2)
    models = [RandomMessages(seed).model().SerializeToString() for seed in range(30)]
    outcomes = [survives(_flipped(data, rng)) for data in models for _ in range(8)]
    assert {True, False} == set(outcomes)


@pytest.mark.parametrize("levels", [1, 30, 33, 100, 5000])
def test_deep_nesting(levels: int) -> None:
    """protobuf allows about 33 graphs in one another."""
    assert survives(nested_graphs(levels)) or levels > 30


def test_absurd_sizes() -> None:
    """Sizes are only numbers until someone asks for the data."""
    huge = 2**62
    graph = ir.Graph(
        "g",
        [
            ir.make_node("Reshape", ["x", "s"], ["y"]),
            ir.make_node("Expand", ["x", "w"], ["z"]),
            ir.make_node("Flatten", ["x"], ["f"], axis=-huge),
            ir.make_node("MaxPool", ["x"], ["p"], kernel_shape=[huge], strides=[0]),
            ir.make_node("Split", ["x"], ["a", "b"], axis=huge),
            ir.make_node("Range", ["s", "s", "s"], ["r"]),
        ],
        [ir.Value("x", 1, (huge, huge, -1)), ir.Value("s", 7, (huge,))],
        initializers={"w": ir.Tensor("w", 7, (huge, huge), bytes(8))},
    )
    assert survives(onnx_codec.encode(ir.Model(graph, 8, [("", 17)])))


def test_wrong_attribute_types_are_reported_by_node() -> None:
    nodes = [
        ir.make_node("Squeeze", ["x"], ["y"], "sq", axes="text"),
        ir.make_node("Split", ["x"], ["a", "b"], "sp", split=ir.Tensor.of("t", np.ones(1))),
    ]
    model = ir.Model(ir.Graph("g", nodes), 8, [("", 12)])
    with pytest.raises(ArtifactError, match=r"(?s)'sq'.*'sp'"):
        opset.raise_opset(model)
    bad = ir.make_node("GridSample", ["x", "g"], ["y"], "grid", mode=b"\xff")
    with pytest.raises(ArtifactError, match=r"'mode' of GridSample 'grid'.*not UTF-8"):
        opset.raise_opset(ir.Model(ir.Graph("g", [bad]), 8, [("", 16)]))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(ZOO))
def test_every_model_damaged(name: str) -> None:
    rng = random.Random(name)
    data = ZOO[name].training_model.read_bytes()
    cuts = [survives(data[:end]) for end in range(0, len(data), max(1, len(data) // 300))]
    assert False in cuts
    flips = [survives(_flipped(data, rng)) for _ in range(300)]
    assert {True, False} == set(flips)
