"""Convolutions, pools and resizes with random attributes and sizes, against the stock op's slopes.

What stock onnxruntime refuses, or sizes otherwise than ONNX does, is passed over; a test fails if
that is most of it.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.gradient_forwards import of_lp_pool, of_stock
from support.gradient_rows.resampling import COORDINATES, ROUNDINGS, resized
from support.gradients import Row, check_slopes, expected_slopes, run_gradients, single, weights_of
from support.lowering import Array, normals

from edge_train.errors import EdgeTrainError, UnsupportedOp

ROUNDS = 40
TOLERANCE = 5e-5


class Draw:
    """Random attributes of one node with ``rank`` spatial axes."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.rank = self.of(1, 1, 2, 2, 3)
        self.seed = seed

    def of(self, *choices: Any) -> Any:
        return self._random.choice(choices)

    def ints(self, low: int, high: int, count: int = 0) -> list[int]:
        return [self._random.randint(low, high) for _ in range(count or self.rank)]

    def often(self, part: float) -> bool:
        return self._random.random() < part

    def array(self, *sizes: int) -> Array:
        return normals(self.seed, sizes)[0]

    def padding(self, limits: list[int]) -> dict[str, Any]:
        """auto_pad, or numbers up to a limit an axis, and dilations where those go together."""
        auto = self.of("NOTSET", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")
        made: dict[str, Any] = {"strides": self.ints(1, 3), "auto_pad": auto}
        if auto == "NOTSET":
            made = {"strides": made["strides"], "pads": [self.of(*range(n)) for n in limits * 2]}
        if not auto.startswith("SAME") and self.often(0.3):
            made["dilations"] = self.ints(1, 2)
        return made


def conv(draw: Draw) -> Row:
    kernel, group = draw.ints(1, 4), draw.of(1, 2, 4)
    inputs = {"x": draw.array(2, 4, *draw.ints(3, 8)), "w": draw.array(4, 4 // group, *kernel)}
    attrs = {"group": group, **draw.padding([3] * draw.rank)}
    return _by_stock("Conv", inputs, attrs, draw)


def conv_transpose(draw: Draw) -> Row:
    kernel, group = draw.ints(1, 4), draw.of(1, 2, 4)
    inputs = {"x": draw.array(2, 4, *draw.ints(3, 6)), "w": draw.array(4, 8 // group, *kernel)}
    attrs = {"group": group, **draw.padding([2] * draw.rank)}
    if "pads" in attrs:
        attrs["output_padding"] = [draw.of(*range(stride)) for stride in attrs["strides"]]
    return _by_stock("ConvTranspose", inputs, attrs, draw)


def _by_stock(op: str, inputs: dict[str, Array], attrs: dict[str, Any], draw: Draw) -> Row:
    if draw.often(0.5):
        filters = inputs["w"].shape[op == "ConvTranspose"] * (attrs["group"] if op != "Conv" else 1)
        inputs["b"] = draw.array(filters)
    return single(f"{op}:random", inputs, attrs=attrs, sized=("w",), expected=of_stock(op, **attrs))


def pool(draw: Draw) -> Row:
    op, kernel = draw.of("MaxPool", "AveragePool", "LpPool"), draw.ints(1, 3)
    attrs = {"kernel_shape": kernel, **draw.padding(kernel)}
    if draw.often(0.3):
        attrs["ceil_mode"] = 1
    sizes = (1, 2, *draw.ints(3, 8))
    order = np.random.default_rng(draw.seed).permutation(int(np.prod(sizes)))
    x = (order.reshape(sizes) / 16 + 0.5).astype(np.float32)  # no ties, no zeros
    if op == "LpPool":
        attrs["p"] = draw.of(1, 2, 3)
        symbols = "ceil_mode" not in attrs
        expected = of_lp_pool(**attrs)
        return single("LpPool:random", {"x": x}, attrs=attrs, symbols=symbols, expected=expected)
    if op == "AveragePool":
        attrs["count_include_pad"] = draw.of(0, 1)
    step = 1 / 64 if op == "MaxPool" else 1.0
    expected = of_stock(op, step, **attrs)
    return single(f"{op}:random", {"x": x}, attrs=attrs, expected=expected, tolerance=1e-4)


def resize(draw: Draw) -> Row:
    modes = {1: ("nearest", "linear"), 2: ("nearest", "linear", "cubic"), 3: ("nearest",)}
    mode = draw.of(*modes[draw.rank])
    attrs = {"mode": mode, "coordinate_transformation_mode": draw.of(*COORDINATES)}
    if mode == "nearest":
        attrs["nearest_mode"] = draw.of(*ROUNDINGS)
    x = draw.array(1, 2, *draw.ints(2, 6))
    if draw.often(0.5):
        factors = [draw.of(0.5, 0.7, 1, 1.3, 2, 2.5, 3) for _ in range(draw.rank)]
        return resized("Resize:random", x, scales=(1, 1, *factors), **attrs)
    return resized("Resize:random", x, sizes=(1, 2, *draw.ints(1, 9)), **attrs)


@pytest.mark.slow
@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("group", [1, 4])
def test_same_pads_of_a_stride_far_beyond_the_kernel(group: int, auto_pad: str) -> None:
    x, w = normals(3, (2, 4, 8, 12), (4, 4 // group, 1, 2))
    attrs = {"auto_pad": auto_pad, "strides": [4, 6], "group": group}
    row = single(
        "Conv:long strides",
        {"x": x, "w": w},
        attrs=attrs,
        sized=("w",),
        expected=of_stock("Conv", **attrs),
    )
    weights = weights_of(row)
    for dynamic in (False, True):
        check_slopes(row, run_gradients(row, weights, dynamic), expected_slopes(row, weights))


@pytest.mark.slow
@pytest.mark.parametrize("make", [conv, conv_transpose, pool, resize])
def test_random_attributes(make: Any) -> None:
    checked = 0
    for seed in range(ROUNDS):
        row = make(Draw(seed))
        row = replace(row, name=f"{row.name} {seed}")
        try:
            weights = weights_of(row)
            slopes = expected_slopes(row, weights)
        except Exception:  # onnxruntime refuses the forward node
            continue
        if not all(value.size for value in weights.values()):
            continue
        for dynamic in (False, True) if row.symbols else (False,):
            try:
                got = run_gradients(row, weights, dynamic)
            except UnsupportedOp:
                continue
            except EdgeTrainError as error:
                if "Incompatible dimensions" in str(error):
                    continue
                raise
            check_slopes(row, got, slopes, max(TOLERANCE, row.tolerance))
            checked += 1
    assert checked > ROUNDS
