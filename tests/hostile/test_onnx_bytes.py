"""Damaged ONNX files: cut short, bits flipped, absurd contents. Only ArtifactError may escape."""

from __future__ import annotations

import random
from contextlib import suppress

import numpy as np
import pytest
from support.onnx_messages import RandomMessages, nested_graphs
from support.zoo import ZOO

from edge_train.errors import ArtifactError
from edge_train.graph import ir, onnx_codec, opset
from edge_train.graph.shapes import Shapes

SMALL = ZOO["mlp_MSELoss"].training_model.read_bytes()


def _tensors(graph: ir.Graph) -> list[ir.Tensor]:
    inside = [t for node in graph.nodes for body in ir.subgraphs(node) for t in _tensors(body)]
    return [*graph.initializers.values(), *inside]


def _survives(data: bytes) -> bool:
    """Runs everything that reads a graph file; True if the file was still a model."""
    try:
        model = onnx_codec.load(data)
    except ArtifactError:
        return False
    for tensor in _tensors(model.graph):
        with suppress(ArtifactError):
            assert tensor.array().shape == tensor.dims
    Shapes.of(model)
    for version in (12, 17):
        model.opset_imports = [("", version)]
        with suppress(ArtifactError):
            opset.raise_opset(model)
    again = onnx_codec.decode(onnx_codec.encode(model))
    assert len(again.graph.nodes) == len(model.graph.nodes)
    return True


def _flipped(data: bytes, rng: random.Random) -> bytes:
    damaged = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
    return bytes(damaged)


def test_the_whole_file_survives() -> None:
    assert _survives(SMALL)


def test_cut_short() -> None:
    for end in range(0, len(SMALL), 23):
        _survives(SMALL[:end])


def test_bits_flipped() -> None:
    rng = random.Random(1)
    outcomes = [_survives(_flipped(SMALL, rng)) for _ in range(150)]
    assert {True, False} == set(outcomes)


def test_random_models_with_bits_flipped() -> None:
    rng = random.Random(2)
    for seed in range(30):
        data = RandomMessages(seed).model().SerializeToString()
        for _ in range(8):
            _survives(_flipped(data, rng))


@pytest.mark.parametrize("levels", [1, 30, 33, 100, 5000])
def test_deep_nesting(levels: int) -> None:
    """protobuf allows about 33 graphs in one another."""
    assert _survives(nested_graphs(levels)) or levels > 30


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
    assert _survives(onnx_codec.encode(ir.Model(graph, 8, [("", 17)])))


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
    for end in range(0, len(data), max(1, len(data) // 300)):
        _survives(data[:end])
    for _ in range(300):
        _survives(_flipped(data, rng))
