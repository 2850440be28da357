"""ConvTransposeGrad beyond its table: the rows' formula itself, and kernels the run tells."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.lowering import Array, check, run_lowered, slopes, stock
from support.rows.tables import row_of
from support.rows.transposed_convolution import TABLE, conv_transpose_row

from edge_train.errors import UnsupportedOp

FORWARD = (
    "auto_pad", "dilations", "group", "kernel_shape", "output_padding", "output_shape", "pads",
    "strides",
)  # fmt: skip
SMOKE = (
    "ConvTransposeGrad",
    "ConvTransposeGrad: output_padding",
    "ConvTransposeGrad: output_shape, odd",
    "ConvTransposeGrad: SAME_LOWER",
)
WHOLE = [
    pytest.param(name, marks=[] if name in SMOKE else pytest.mark.slow)
    for name in TABLE
    # onnxruntime refuses an output_padding that is not below the stride
    if not any(word in name for word in ("only", "bias", "beyond the stride"))
]


@pytest.mark.parametrize("name", WHOLE)
def test_rows_are_gradients_of_the_stock_op(name: str) -> None:
    row = row_of(name)
    x, w, dy = (row.feeds[key] for key in ("x", "w", "dy"))
    attrs = {key: row.nodes[0].attr(key) for key in FORWARD}
    forward = stock("ConvTranspose", {"x": x, "w": w}, **attrs)

    def of_x(value: Array) -> Array:
        return forward(x=value)[0]

    def of_w(value: Array) -> Array:
        return forward(w=value)[0]

    # linear in each: one difference from 0 is the exact derivative
    got = {
        "dx": slopes(of_x, np.zeros_like(x), dy, 1.0),
        "dw": slopes(of_w, np.zeros_like(w), dy, 1.0),
        "db": dy.sum((0, *range(2, dy.ndim)), dtype=np.float64),
    }
    check(row, got)


def test_kernel_known_at_run_time_only() -> None:
    row = conv_transpose_row("w", (3, 4), (4, 5), (3, 2), declared=False, strides=(2, 2))
    check(row, run_lowered(replace(row, sized=()), dynamic=True))


def test_a_given_output_needs_the_kernel() -> None:
    row = conv_transpose_row(
        "w", (3, 4), (4, 5), (3, 2), declared=False, strides=(2, 2), output_shape=(8, 9)
    )
    with pytest.raises(UnsupportedOp, match="kernel's size is not known"):
        run_lowered(replace(row, sized=()), dynamic=True)


def test_unknown_auto_pad_is_refused() -> None:
    row = conv_transpose_row("w", (3, 4), (4, 5), (3, 2))
    odd = replace(row, nodes=(replace(row.nodes[0], attributes={
        **row.nodes[0].attributes, "auto_pad": replace(row.nodes[0].attributes["kernel_shape"],
                                                       name="auto_pad", type=3, value=b"SIDEWAYS")
    }),))  # fmt: skip
    with pytest.raises(UnsupportedOp, match="SIDEWAYS"):
        run_lowered(odd)
