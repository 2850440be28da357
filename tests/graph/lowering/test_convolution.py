"""ConvGrad beyond its table: the rows' formula itself, unknown kernels, the form that is chosen."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from support.lowering import Array, Row, check, model_of, run_lowered, slopes, stock
from support.rows.convolution import TABLE, conv_row
from support.rows.tables import row_of

from edge_train.errors import UnsupportedOp
from edge_train.graph.lowering import lower

FORWARD = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
FORMULA = [
    "ConvGrad",
    "ConvGrad: asymmetric pads",
    "ConvGrad: dilation and stride",
    "ConvGrad: stride beyond the kernel",
    "ConvGrad: SAME_UPPER, stride 2",
    "ConvGrad: SAME_LOWER, stride 2",
    "ConvGrad: SAME_UPPER, stride beyond",
    "ConvGrad: group, dilation",
    "ConvGrad: 1-d, SAME_UPPER",
    "ConvGrad: 3-d, group",
]


@pytest.mark.parametrize("name", FORMULA)
def test_rows_are_gradients_of_the_stock_convolution(name: str) -> None:
    row = row_of(name)
    x, w, dy = (row.feeds[key] for key in ("x", "w", "dy"))
    attrs = {key: row.nodes[0].attr(key) for key in FORWARD}
    convolution = stock("Conv", {"x": x, "w": w}, **attrs)

    def of_x(value: Array) -> Array:
        return convolution(x=value)[0]

    def of_w(value: Array) -> Array:
        return convolution(w=value)[0]

    # linear in each: one difference from 0 is the exact derivative
    got = {
        "dx": slopes(of_x, np.zeros_like(x), dy, 1.0),
        "dw": slopes(of_w, np.zeros_like(w), dy, 1.0),
        "db": dy.sum((0, *range(2, dy.ndim)), dtype=np.float64),
    }
    check(row, got)


@pytest.mark.parametrize("dynamic", [False, True], ids=["sizes", "symbols"])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("group", [1, 2, 4])
def test_kernel_known_at_run_time_only(group: int, stride: int, dynamic: bool) -> None:
    strides = [stride, stride]
    row = conv_row(
        "w", (4, 4), (7, 8), (3, 2), declared=False, group=group, strides=strides, pads=[1, 0, 1, 1]
    )
    loose = replace(row, sized=() if dynamic else ("x", "dy"))
    check(row, run_lowered(loose, dynamic=True))


def test_kernel_known_at_run_time_only_and_same_pads() -> None:
    row = conv_row("w", (4, 4), (7, 8), (3, 2), declared=False, auto_pad="SAME_UPPER")
    with pytest.raises(UnsupportedOp, match="kernel's size is not known"):
        run_lowered(replace(row, sized=()), dynamic=True)


def ops_of(row: Row, dynamic: bool = False) -> Counter[str]:
    return Counter(node.op_type for node in lower(model_of(row, dynamic)).model.graph.nodes)


def test_a_plain_1x1_convolution_is_products() -> None:
    ops = ops_of(TABLE["ConvGrad: 1x1"]())
    assert ops["ConvTranspose"] == 0
    assert ops["MatMul"] == 1
    assert ops["Slice"] == ops["Pad"] == ops["Concat"] == 0


def test_static_sizes_need_no_cropping() -> None:
    row = conv_row("w", (4, 4), (8, 8), (3, 3), outputs="dx", strides=[2, 2], pads=[1] * 4)
    assert ops_of(row) == {"ConvTranspose": 1}
    assert ops_of(row, dynamic=True)["Slice"] == 1


def test_unwanted_gradients_cost_nothing() -> None:
    row = conv_row("w", (4, 4), (8, 8), (3, 3), outputs="_ _ db")
    assert ops_of(row) == {"ReduceSum": 1}


def test_unknown_auto_pad_is_refused() -> None:
    row = conv_row("w", (4, 4), (8, 8), (3, 3), auto_pad="SIDEWAYS")
    with pytest.raises(UnsupportedOp, match="SIDEWAYS"):
        run_lowered(row)
