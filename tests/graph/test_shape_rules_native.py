"""Shapes of our own ops' outputs: those of the standard ops that they stand for."""

from __future__ import annotations

import pytest
from support.zoo import ZOO

from edge_train import dtypes
from edge_train.graph import ir, onnx_codec
from edge_train.graph.lowering import lower
from edge_train.graph.shapes import Shapes


def shapes_of(node: ir.Node, **inputs: tuple[ir.Dim, ...]) -> Shapes:
    values = [ir.Value(name, dtypes.FLOAT, dims) for name, dims in inputs.items()]
    return Shapes.of(ir.Graph("g", [node], values))


def test_convolutions() -> None:
    pointwise = ir.make_node("PointwiseConv", ["x", "w"], ["y"], domain=ir.NATIVE)
    known = shapes_of(pointwise, x=("n", 8, 7, 5), w=(16, 8, 1, 1))
    assert known.dims("y") == ("n", 16, 7, 5)
    window = {"strides": [2, 2], "pads": [1, 1, 1, 1], "dilations": [1, 1]}
    depthwise = ir.make_node("DepthwiseConv", ["x", "w"], ["y"], domain=ir.NATIVE, **window)
    assert shapes_of(depthwise, x=("n", 8, 7, 6), w=(8, 1, 3, 3)).dims("y") == ("n", 8, 4, 3)


def test_losses_and_normalisation() -> None:
    node = ir.make_node("CrossEntropyWithGrad", ["s", "x", "t"], ["l", "dx"], domain=ir.NATIVE)
    assert shapes_of(node, s=(), x=("n", 5), t=("n",)).dims("dx") == ("n", 5)
    node = ir.make_node("BatchNorm", ["x", "g", "b"], ["y", "mean"], domain=ir.NATIVE)
    known = shapes_of(node, x=("n", 4, 3, 3), g=(4,), b=(4,))
    assert (known.dims("y"), known.dims("mean")) == (("n", 4, 3, 3), (4,))


@pytest.mark.parametrize("name", ["conv_bn_maxpool_gap", "depthwise_static_batch"])
def test_lowering_knows_the_same(name: str) -> None:
    lowered = lower(onnx_codec.load(ZOO[name].training_model), True)
    found = Shapes.of(lowered.model)
    for node in lowered.model.graph.nodes:
        dims, output = lowered.shapes.dims(node.output(0)), node.output(0)
        if node.domain == ir.NATIVE and dims is not None and found.dims(output) is not None:
            assert len(found.dims(output) or ()) == len(dims)
            for got, expected in zip(found.dims(output) or (), dims, strict=True):
                if isinstance(got, int) and isinstance(expected, int):
                    assert got == expected
