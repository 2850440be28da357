"""Sizes of resampling and unpooling: what stock onnxruntime makes of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.lowering import Array, stock

from edge_train import dtypes
from edge_train.graph import ir
from edge_train.graph.shapes import Shapes

X = np.zeros((2, 8, 4, 6), np.float32)
SCALES = np.array([1, 1, 2.5, 0.7], np.float32)
SIZES = np.array([2, 8, 3, 9], np.int64)
INDICES = np.zeros((2, 8, 4, 6), np.int64)

CASES: dict[str, tuple[str, str, dict[str, Array], dict[str, Any]]] = {
    "scales": ("Resize", "x _ scales", {"scales": SCALES}, {}),
    "sizes": ("Resize", "x _ _ sizes", {"sizes": SIZES}, {}),
    "axes": ("Resize", "x _ scales", {"scales": SCALES[2:]}, {"axes": [3, 1]}),
    "depth": ("DepthToSpace", "x", {}, {"blocksize": 2}),
    "space": ("SpaceToDepth", "x", {}, {"blocksize": 2}),
    "unpool": ("MaxUnpool", "x at", {"at": INDICES}, {"kernel_shape": [3, 2], "strides": [2, 1]}),
    "unpool to": (
        "MaxUnpool", "x at size", {"at": INDICES, "size": np.array([2, 8, 9, 9])},
        {"kernel_shape": [2, 2]},
    ),
}  # fmt: skip


def inferred(case: str, x: tuple[ir.Dim, ...]) -> tuple[ir.Dim, ...] | None:
    op_type, reads, constants, attrs = CASES[case]
    inputs = ["" if name == "_" else name for name in reads.split()]
    graph = ir.Graph("g", [ir.make_node(op_type, inputs, ["y"], **attrs)])
    graph.inputs.append(ir.Value("x", dtypes.FLOAT, x))
    graph.initializers.update({n: ir.Tensor.of(n, value) for n, value in constants.items()})
    return Shapes.of(graph).dims("y")


@pytest.mark.parametrize("case", CASES)
def test_sizes_as_onnxruntime_makes_them(case: str) -> None:
    op_type, reads, constants, attrs = CASES[case]
    (y,) = stock(op_type, {"x": X, **constants}, reads=reads, **attrs)()
    assert inferred(case, X.shape) == y.shape


@pytest.mark.parametrize(
    ("case", "dims"),
    [
        ("scales", ("N", 8, None, None)),
        ("sizes", (2, 8, 3, 9)),
        ("axes", ("N", 5, "H", None)),
        ("depth", ("N", 2, None, None)),
        ("unpool", ("N", 8, None, None)),
        ("unpool to", (2, 8, 9, 9)),
    ],
)
def test_sizes_of_symbols(case: str, dims: tuple[ir.Dim, ...]) -> None:
    assert inferred(case, ("N", 8, "H", "W")) == dims


def test_two_axes_may_both_be_resized() -> None:
    assert inferred("axes", (4, 5)) is None
    graph = ir.Graph("g", [ir.make_node("Resize", ["x", "", "s"], ["y"])])
    graph.inputs += [ir.Value("x", dtypes.FLOAT, (4, 5)), ir.Value("s", dtypes.FLOAT, (2,))]
    assert Shapes.of(graph).dims("y") == (None, None)
