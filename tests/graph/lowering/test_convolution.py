"""ConvGrad beyond its table: the rows' formula itself, unknown kernels, the form that is chosen."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.lowering import Array, Row, check, model_of, node, run_lowered, slopes, stock
from support.rows.convolution import TABLE, conv_row
from support.rows.tables import row_of

from edge_train.errors import UnsupportedOp
from edge_train.graph.lowering import lower
from edge_train.graph.same_pads import same_pads
from edge_train.kernels import native

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


#: onnxruntime's first window begins inside the input: (channels, sizes, kernel, strides, more)
LONG_STRIDES: dict[str, tuple[Any, ...]] = {
    "1x1": ((2, 3), (8, 9), (1, 1), (4, 6), {}),
    "pads on one axis": ((2, 3), (7, 10), (3, 2), (2, 5), {}),
    "group": ((4, 6), (12, 7), (2, 3), (6, 7), {"group": 2}),
    "depthwise": ((4, 4), (10, 12), (2, 2), (5, 6), {"group": 4}),
    "depthwise, many positions": ((2, 2), (325,), (2,), (5,), {"group": 2}),
    "17 taps": ((1, 2), (42,), (17,), (21,), {}),
    "3-d": ((1, 1), (4, 8, 3), (1, 1, 1), (4, 5, 3), {}),
}


def long_strides_row(name: str, auto_pad: str) -> Row:
    """The convolution and its gradient, by the differences of the stock convolution alone."""
    channels, sizes, kernel, strides, more = LONG_STRIDES[name]
    attrs = {"strides": list(strides), "auto_pad": auto_pad, **more}
    bare = conv_row(name, channels, sizes, kernel, outputs="dx dw _", batch=1, **attrs)
    x, w, dy = (bare.feeds[key] for key in ("x", "w", "dy"))
    convolution = stock("Conv", {"x": x, "w": w}, **attrs)
    expected = {
        "y": convolution()[0].astype(np.float64),
        "dx": slopes(lambda value: convolution(x=value)[0], np.zeros_like(x), dy, 1.0),
        "dw": slopes(lambda value: convolution(w=value)[0], np.zeros_like(w), dy, 1.0),
    }
    nodes = (node("Conv", "x w", "y", "", **attrs), *bare.nodes)
    return replace(bare, nodes=nodes, expected=expected)


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("name", LONG_STRIDES)
def test_same_pads_of_a_stride_far_beyond_the_kernel(name: str, auto_pad: str) -> None:
    row = long_strides_row(name, auto_pad)
    for dynamic in (False, True):
        check(row, run_lowered(row, dynamic))


@pytest.mark.skipif(
    not native.has_ops(), reason="no native library: tools/build_kernels.py makes it"
)
@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("name", [k for k, case in LONG_STRIDES.items() if len(case[1]) == 2])
def test_our_kernels_take_no_stride_far_beyond_the_kernel_wrongly(name: str, auto_pad: str) -> None:
    row = long_strides_row(name, auto_pad)
    check(row, run_lowered(row, fused=True))


@pytest.mark.slow
def test_same_pads_are_those_of_onnxruntime() -> None:
    """Every size, stride and kernel of one axis: what a kernel's first tap reads of 1, 2, 3..."""
    for auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        for kernel, stride in itertools.product(range(1, 5), range(1, 12)):
            w = np.zeros((1, 1, kernel), np.float32)
            w[..., 0] = 1
            attrs = {"auto_pad": auto_pad, "strides": [stride]}
            read = stock("Conv", {"x": np.zeros((1, 1, 1), np.float32), "w": w}, **attrs)
            for size in range(1, 24):
                x = np.arange(1, size + 1, dtype=np.float32)
                before, _ = same_pads(size, stride, kernel, auto_pad == "SAME_LOWER")
                starts = np.arange(0, size, stride) - before
                inside = (starts >= 0) & (starts < size)
                (y,) = read(x=x[None, None])
                np.testing.assert_array_equal(y[0, 0], np.where(inside, starts + 1, 0))
