"""ResizeGrad beyond its table: the rows' formula itself, aspect ratios, what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.lowering import Array, Row, check, node, run_lowered, session, slopes
from support.rows.resizing import TABLE, resize_row
from support.rows.tables import row_of

from edge_train import dtypes
from edge_train.errors import UnsupportedOp
from edge_train.graph import ir

#: ended with opset 13; later versions of onnxruntime's Resize refuse it
GONE = "tf_half_pixel_for_nn"
SMOKE = ("ResizeGrad", "ResizeGrad: cubic", "ResizeGrad: half_pixel_symmetric, linear")
WHOLE = [
    pytest.param(name, marks=[] if name in SMOKE else pytest.mark.slow)
    for name in TABLE
    if GONE not in name
]


def stock_resize(row: Row) -> Any:
    """onnxruntime's Resize with the row's attributes, as a function of x."""
    grad, x, dy = row.nodes[0], row.feeds["x"], row.feeds["dy"]
    constants = {
        name: ir.Tensor.of(name, value)
        for name, value in {**row.feeds, **row.constants}.items()
        if name in ("roi", "scales")
    }
    axes = grad.attr("axes") or range(x.ndim)
    inputs = ["x", "roi" if "roi" in constants else "", "scales"]
    if "scales" not in constants:
        sizes = np.array([dy.shape[axis] for axis in axes], np.int64)
        constants["sizes"] = ir.Tensor.of("sizes", sizes)
        inputs = [*inputs[:2], "", "sizes"]
    attrs = {name: value.value for name, value in grad.attributes.items()}
    forward = ir.make_node("Resize", inputs, ["y"], **attrs)
    graph = ir.Graph(
        "stock",
        [forward],
        [ir.Value("x", dtypes.FLOAT, x.shape)],
        [ir.Value("y", dtypes.FLOAT, None)],
        constants,
    )
    run = session(ir.Model(graph, 10, [("", 21)]))
    return lambda value: np.asarray(run.run(["y"], {"x": value})[0])


@pytest.mark.parametrize("name", WHOLE)
def test_rows_are_gradients_of_the_stock_op(name: str) -> None:
    row = row_of(name)
    forward = stock_resize(row)
    rest = forward(np.zeros_like(row.feeds["x"]))  # the extrapolation value, if any

    def linear(value: Array) -> Array:
        return forward(value) - rest

    got = slopes(linear, np.zeros_like(row.feeds["x"]), row.feeds["dy"], 1.0)
    check(row, {"dx": got})


@pytest.mark.parametrize(("policy", "factor"), [("not_larger", 1.5), ("not_smaller", 2.0)])
def test_aspect_ratio_comes_from_the_forward_sizes(policy: str, factor: float) -> None:
    even = resize_row("w", shape=(2, 3, 4, 6), scales=(1, 1, factor, factor), mode="linear")
    attrs = {"mode": "linear", "keep_aspect_ratio_policy": policy, "axes": [2, 3]}
    forward = ir.make_node("Resize", ["x", "", "", "sizes"], ["y"], "up", "", **attrs)
    backward = ir.make_node(
        "ResizeGrad", ["y_grad", "x"], ["dx"], "up_Grad/ResizeGrad_0", ir.MICROSOFT, **attrs
    )
    dy = even.feeds["dy"]
    row = Row(
        "aspect",
        (forward, backward),
        {"x": even.feeds["x"], "y_grad": dy},
        {"y": dy.astype(np.float64), "dx": even.expected["dx"]},
        constants={"sizes": np.array([6, 12], np.int64)},  # of 4 and 6: 1.5 and 2.0
    )
    got = run_lowered(row)
    assert got["y"].shape == dy.shape
    check(even, got)


def test_the_aspect_ratio_needs_the_forward_node() -> None:
    row = resize_row("w", sizes=(2, 3, 8, 8), mode="linear", keep_aspect_ratio_policy="not_larger")
    with pytest.raises(UnsupportedOp, match="needs the sizes of its Resize"):
        run_lowered(row)


@pytest.mark.parametrize(
    ("attrs", "text"),
    [
        ({"mode": "area"}, "mode is 'area'"),
        ({"coordinate_transformation_mode": "sideways"}, "sideways"),
        ({"nearest_mode": "away"}, "away"),
        ({"coordinate_transformation_mode": "tf_crop_and_resize"}, "without the input roi"),
    ],
)
def test_forms_that_onnx_lacks_are_refused(attrs: dict[str, str], text: str) -> None:
    x, dy = np.zeros((1, 1, 2, 2), np.float32), np.zeros((1, 1, 4, 4), np.float32)
    nodes = (node("ResizeGrad", "dy x", "dx", **attrs),)
    with pytest.raises(UnsupportedOp, match=text):
        run_lowered(Row("w", nodes, {"dy": dy, "x": x}, {"dx": np.zeros((1, 1, 2, 2))}))
