"""Ranks behind quantized, random and detection ops: declared types taken away, then inferred."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto as T
from onnx import helper, numpy_helper, shape_inference

from edge_train.graph import onnx_codec
from edge_train.graph.shapes import Shapes

U8, FLOAT = np.uint8, np.float32


def _quantized(*shape: int) -> dict[str, np.ndarray]:
    return {"w": np.ones(shape, U8)}


_SCALES = {
    "s": np.array(0.1, FLOAT), "z": np.array(3, U8), "ws": np.array(0.2, FLOAT),
    "wz": np.array(1, U8), "ys": np.array(0.3, FLOAT), "yz": np.array(2, U8),
}  # fmt: skip
_Q = "s z w ws wz ys yz"

# op: (input types and shapes, other constants, inputs, attributes)
ROWS: dict[str, tuple[Any, ...]] = {
    "DynamicQuantizeLinear": ({"x": (T.FLOAT, (2, 3, 4))}, {}, "x", {}, 3),
    "MatMulInteger": ({"x": (T.UINT8, (5, 2, 3))}, _quantized(3, 4), "x w", {}, 1),
    "ConvInteger": ({"x": (T.UINT8, (2, 3, 8, 8))}, _quantized(4, 3, 3, 3), "x w", {}, 1),
    "QLinearMatMul": ({"x": (T.UINT8, (2, 3))}, _quantized(3, 4) | _SCALES, f"x {_Q}", {}, 1),
    "QLinearConv": (
        {"x": (T.UINT8, (2, 3, 8, 8))}, _quantized(4, 3, 3, 3) | _SCALES, f"x {_Q}",
        {"strides": [2, 2]}, 1,
    ),
    "RandomNormalLike": ({"x": (T.FLOAT, (2, 3))}, {}, "x", {}, 1),
    "RandomUniform": ({}, {}, "", {"shape": [2, 5]}, 1),
    "Bernoulli": ({"x": (T.FLOAT, (2, 3))}, {}, "x", {}, 1),
    "EyeLike": ({"x": (T.FLOAT, (3, 3))}, {}, "x", {}, 1),
    "GridSample": ({"x": (T.FLOAT, (2, 3, 8, 8)), "g": (T.FLOAT, (2, 5, 6, 2))}, {}, "x g", {}, 1),
    "RoiAlign": (
        {"x": (T.FLOAT, (2, 3, 8, 8)), "r": (T.FLOAT, (7, 4)), "b": (T.INT64, (7,))}, {}, "x r b",
        {"output_height": 4, "output_width": 5}, 1,
    ),
    "Det": ({"x": (T.FLOAT, (2, 4, 4))}, {}, "x", {}, 1),
    "NonMaxSuppression": (
        {"x": (T.FLOAT, (1, 9, 4)), "c": (T.FLOAT, (1, 2, 9))}, {}, "x c", {}, 1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("op", ROWS)
def test_the_facts_are_those_of_onnx(op: str) -> None:
    fed, constants, inputs, attributes, count = ROWS[op]
    outputs = [f"y{index}" for index in range(count)]
    node = helper.make_node(op, inputs.split(), outputs, "node", **attributes)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info(name, *what) for name, what in fed.items()],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    shapes = Shapes.of(onnx_codec.decode(model.SerializeToString()))
    known = shape_inference.infer_shapes(model, strict_mode=True).graph.output
    for value in known:
        kind = value.type.tensor_type
        dims = [dim.dim_value or None for dim in kind.shape.dim]
        assert shapes.elem_type(value.name) == kind.elem_type
        got = shapes.dims(value.name)
        assert got is not None
        assert len(got) == len(dims)
        assert all(a == b for a, b in zip(got, dims, strict=True) if b is not None)


def test_a_product_with_packed_weights_keeps_its_batch() -> None:
    node = helper.make_node(
        "MatMulNBits", ["x", "b", "s"], ["y"], "n", domain="com.microsoft",
        K=16, N=3, bits=4, block_size=16,
    )  # fmt: skip
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("x", T.FLOAT, ("n", 5, 16))],
        [helper.make_empty_tensor_value_info("y")],
    )  # fmt: skip
    imports = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=9)
    shapes = Shapes.of(onnx_codec.decode(model.SerializeToString()))
    assert shapes.dims("y") == ("n", 5, 3)
