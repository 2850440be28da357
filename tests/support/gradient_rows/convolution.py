"""Gradient rows of convolutions."""

from __future__ import annotations

from typing import Any

import numpy as np
from support.gradient_forwards import of_stock
from support.gradients import Row, normals, single
from support.lowering import Array

SIZES = {1: (7,), 2: (6, 5), 3: (4, 5, 3)}


def convolved(
    name: str, rank: int, channels: int = 2, filters: int = 4, bias: bool = True, **attrs: Any
) -> Row:
    """A convolution; ``kernel`` is one number or a size an axis, 3 if not given."""
    group = attrs.get("group", 1)
    kernel = attrs.pop("kernel", (3,) * rank)
    inputs = _arrays((2, channels, *SIZES[rank]), (filters, channels // group, *kernel), filters)
    if not bias:
        del inputs["b"]
    return single(name, inputs, attrs=attrs, sized=("w",))


def transposed(
    name: str, rank: int, channels: int = 4, filters: int = 2, bias: bool = True, **attrs: Any
) -> Row:
    """The same for ConvTranspose, whose kernels lie the other way."""
    group, symbols = attrs.get("group", 1), "output_shape" not in attrs  # pads follow from sizes
    kernel = attrs.pop("kernel", (3,) * rank)
    sizes = tuple(size - 1 for size in SIZES[rank])
    inputs = _arrays((2, channels, *sizes), (channels, filters // group, *kernel), filters)
    if not bias:
        del inputs["b"]
    expected = of_stock("ConvTranspose", **attrs)
    return single(name, inputs, attrs=attrs, sized=("w",), symbols=symbols, expected=expected)


def _arrays(x: tuple[int, ...], w: tuple[int, ...], filters: int) -> dict[str, Array]:
    made = normals(len(x) + sum(w), x, w, (filters,))
    return dict(zip("xwb", (np.asarray(value) for value in made), strict=True))


CONV: list[Row] = [
    convolved("Conv", 2, pads=[1, 1, 1, 1]),
    convolved("Conv:no bias", 2, bias=False),
    convolved("Conv:1-D", 1, strides=[2], pads=[2, 0], dilations=[2]),
    convolved("Conv:3-D", 3, kernel=(2, 3, 1), pads=[0, 1, 0, 1, 0, 0]),
    convolved("Conv:strides, slack", 2, strides=[3, 2], pads=[0, 1, 1, 0]),
    convolved("Conv:dilations", 2, kernel=(2, 2), dilations=[3, 2], pads=[1, 1, 1, 1]),
    convolved("Conv:groups", 2, channels=4, group=2, strides=[2, 1]),
    convolved("Conv:depthwise", 2, channels=4, group=4, pads=[1, 1, 1, 1]),
    convolved("Conv:1x1", 2, kernel=(1, 1)),
    convolved("Conv:VALID", 2, auto_pad="VALID", strides=[2, 2]),
    *(
        convolved(f"Conv:{auto_pad} {form}", 2, auto_pad=auto_pad, kernel=kernel, strides=strides)
        for auto_pad in ("SAME_UPPER", "SAME_LOWER")
        for form, kernel, strides in (
            ("even", (2, 4), [1, 1]),
            ("strides", (3, 4), [2, 3]),
            ("gaps", (1, 2), [2, 3]),
        )
    ),
    convolved("Conv:SAME_UPPER 1-D", 1, auto_pad="SAME_UPPER", kernel=(4,)),
]

TRANSPOSED: list[Row] = [
    transposed("ConvTranspose", 2, strides=[2, 2], pads=[1, 1, 1, 1], output_padding=[1, 1]),
    transposed("ConvTranspose:plain", 2, bias=False),
    transposed("ConvTranspose:1-D", 1, strides=[3], pads=[1, 0], dilations=[2]),
    transposed("ConvTranspose:3-D", 3, kernel=(2, 1, 3), strides=[2, 1, 1]),
    transposed("ConvTranspose:groups", 2, channels=4, filters=6, group=2, strides=[2, 1]),
    transposed("ConvTranspose:depthwise", 2, channels=4, filters=4, group=4, strides=[2, 2]),
    transposed("ConvTranspose:VALID", 2, auto_pad="VALID", strides=[2, 3]),
    *(
        transposed(f"ConvTranspose:{auto} {form}", 2, auto_pad=auto, kernel=kernel, **more)
        for auto in ("SAME_UPPER", "SAME_LOWER")
        for form, kernel, more in (
            ("odd sum", (3, 4), {"strides": [2, 1]}),
            ("gaps", (1, 2), {"strides": [2, 3]}),
            ("output_shape", (3, 4), {"strides": [2, 1], "output_shape": [9, 6]}),
        )
    ),
    transposed("ConvTranspose:output_shape", 2, strides=[2, 2], output_shape=[10, 8]),
]

ROWS = CONV + TRANSPOSED
