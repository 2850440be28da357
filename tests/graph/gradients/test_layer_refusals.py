"""Forms of layers without gradient: refused by name, with the reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.gradients import node, normals

from edge_train import dtypes
from edge_train.errors import UnsupportedOp
from edge_train.graph import ir
from edge_train.graph.autodiff import differentiate
from edge_train.graph.prepare import prepare
from edge_train.graph.shapes import Shapes

IMAGE = ("N", 2, "H", "W")
ROOM = ("T", "N", 3)
WEIGHTS = {"w": normals(1, (1, 8, 3))[0], "r": normals(2, (1, 8, 2))[0]}
FILTER = {"w": normals(3, (2, 3, 3, 3))[0]}
GRID = {"g": np.zeros((2, 3, 3, 2), np.float32)}
SIZES = {"to": np.array([1, 2, 4, 4])}

CASES: dict[str, tuple[tuple[ir.Dim, ...], ir.Node, dict[str, Any], str]] = {
    "LSTM": (
        ROOM,
        node("LSTM", "x w r", "y", "", hidden_size=2, layout=1),
        WEIGHTS,
        "make time the first axis",
    ),
    "LpPool": (
        IMAGE,
        node("LpPool", "x", "y", "", kernel_shape=[2, 2], ceil_mode=1),
        {},
        "ceil_mode with sizes that are not known: declare them",
    ),
    "AveragePool": (
        IMAGE,
        node(
            "AveragePool", "x", "y", "", kernel_shape=[1, 1], strides=[3, 1], auto_pad="SAME_UPPER"
        ),
        {},
        "write the pads as numbers",
    ),
    "ConvTranspose": (
        IMAGE,
        node("ConvTranspose", "x w", "y", "", output_shape=[9, 9]),
        FILTER,
        "declare them",
    ),
    "Resize": (
        IMAGE,
        node("Resize", "x _ _ to", "y", "", coordinate_transformation_mode="tf_crop_and_resize"),
        SIZES,
        "without the input roi",
    ),
    "GridSample": (IMAGE, node("GridSample", "x g", "y", ""), GRID, "use Resize"),
    "RoiAlign": (
        IMAGE,
        node("RoiAlign", "x b i", "y", ""),
        {"b": np.zeros((1, 4), np.float32), "i": np.zeros(1, np.int64)},
        "behind it",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_refused_with_the_reason(case: str) -> None:
    dims, made, constants, reason = CASES[case]
    graph = ir.Graph(
        "g",
        [made, node("ReduceSum", "y", "loss", "", keepdims=0)],
        [ir.Value("x", dtypes.FLOAT, dims)],
        [ir.Value("loss", dtypes.FLOAT, ())],
        {name: ir.Tensor.of(name, value) for name, value in constants.items()},
    )
    model = prepare(ir.Model(graph, 10, [("", 21)]))
    with pytest.raises(UnsupportedOp, match=f"{case}_node.*{reason}"):
        differentiate(model.graph, Shapes.of(model), "loss", ["x"])


@pytest.mark.parametrize(
    ("zero", "attrs", "reason"),
    [
        (ir.Tensor("z", 17, (), b"\0"), {}, "it quantizes to data type 17"),
        (ir.Tensor.of("z", np.zeros((2, 2, 2, 1), np.int8)), {"block_size": 2}, "in blocks"),
    ],
)
def test_quantization_without_gradient(zero: ir.Tensor, attrs: dict[str, int], reason: str) -> None:
    scale = np.ones(zero.dims, np.float32)
    nodes = [
        node("QuantizeLinear", "x s z", "q", "", **attrs),
        node("DequantizeLinear", "q s z", "y", "", **attrs),
        node("ReduceSum", "y", "loss", "", keepdims=0),
    ]
    graph = ir.Graph(
        "g",
        nodes,
        [ir.Value("x", dtypes.FLOAT, (2, 4, 2, 1))],
        [ir.Value("loss", dtypes.FLOAT, ())],
        {"s": ir.Tensor.of("s", scale), "z": zero},
    )
    model = prepare(ir.Model(graph, 10, [("", 21)]))
    with pytest.raises(UnsupportedOp, match=f"QuantizeLinear_node.*{reason}"):
        differentiate(model.graph, Shapes.of(model), "loss", ["x"])
