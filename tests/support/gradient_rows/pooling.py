"""Gradient rows of pooling."""

from __future__ import annotations

from typing import Any

import numpy as np
from support.gradient_forwards import of_formula, of_lp_pool, of_stock
from support.gradients import Row, chain, node, single
from support.lowering import Array

SIZES = {1: (9,), 2: (7, 6), 3: (5, 4, 4)}


def distinct(*sizes: int) -> Array:
    """Whole numbers around 0 in random order, none of them 0: no ties, no kinks nearby."""
    order = np.random.default_rng(3).permutation(int(np.prod(sizes))) - np.prod(sizes) // 2
    return (order.reshape(sizes) + 0.5).astype(np.float32)


def pooled(name: str, rank: int, **attrs: Any) -> Row:
    """A pool over two channels of two samples; ceil_mode of LpPool needs sizes."""
    attrs.setdefault("kernel_shape", (2,) * rank)
    op, x = name.partition(":")[0], distinct(2, 2, *SIZES[rank])
    if op == "LpPool":
        symbols = not attrs.get("ceil_mode")  # how far its windows reach follows from the sizes
        expected = of_lp_pool(**{"p": 2, **attrs})
        return single(
            name,
            {"x": (x / 16).astype(np.float32)},
            attrs=attrs,
            symbols=symbols,
            expected=expected,
        )
    step = 0.25 if op == "MaxPool" else 16.0
    return single(name, {"x": x}, attrs=attrs, expected=of_stock(op, step, **attrs))


def windows(op: str) -> list[Row]:
    """What all pools have in common."""
    return [
        pooled(op, 2, strides=[2, 2]),
        pooled(f"{op}:1-D", 1, kernel_shape=[3], strides=[2], pads=[1, 0]),
        pooled(f"{op}:3-D", 3, strides=[2, 1, 2]),
        pooled(f"{op}:overlap", 2, kernel_shape=[3, 2], pads=[1, 0, 1, 1]),
        pooled(f"{op}:gaps", 2, kernel_shape=[1, 2], strides=[3, 3]),
        pooled(f"{op}:VALID", 2, kernel_shape=[3, 2], auto_pad="VALID", strides=[2, 2]),
        pooled(f"{op}:SAME_UPPER", 2, kernel_shape=[3, 2], auto_pad="SAME_UPPER", strides=[2, 2]),
        pooled(f"{op}:SAME_LOWER", 2, kernel_shape=[2, 3], auto_pad="SAME_LOWER", strides=[2, 1]),
        pooled(f"{op}:SAME_LOWER, gaps", 1, kernel_shape=[1], auto_pad="SAME_LOWER", strides=[2]),
        pooled(f"{op}:SAME_UPPER, ceil", 1, auto_pad="SAME_UPPER", strides=[2], ceil_mode=1),
        pooled(
            f"{op}:VALID, ceil",
            1,
            kernel_shape=[3],
            auto_pad="VALID",
            strides=[4],
            ceil_mode=1,
        ),
        pooled(f"{op}:dilations", 2, dilations=[2, 1], strides=[1, 2]),
        pooled(f"{op}:ceil", 2, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
        pooled(
            f"{op}:ceil, pads",
            2,
            kernel_shape=[3, 3],
            strides=[2, 2],
            pads=[1, 1, 0, 1],
            ceil_mode=1,
        ),
    ]


TIED = np.array([[[[2, 1, 2], [0, 2, -1]], [[0, 0, 0], [0, 0, 0]]]], np.float32)
INDICES = np.array([[[[3, 0], [7, 9]]]], np.int64)


def global_power(name: str, x: Array, p: int) -> Row:
    """(sum |x|^p)^(1/p) of each plane."""

    def forward(inputs: dict[str, Array]) -> Array:
        axes = tuple(range(2, inputs["x"].ndim))
        return np.asarray((np.abs(inputs["x"]) ** p).sum(axes, keepdims=True) ** (1 / p))

    return single(name, {"x": x}, attrs={"p": p}, expected=of_formula(forward))


def shared(inputs: dict[str, Array], r: dict[str, Array]) -> dict[str, Array]:
    """Each of the equal maxima of a plane gets the same part."""
    largest = inputs["x"] == inputs["x"].max((2, 3), keepdims=True)
    return {"x": largest * r["y"] / largest.sum((2, 3), keepdims=True)}


ROWS: list[Row] = [
    *windows("MaxPool"),
    *windows("AveragePool"),
    *windows("LpPool"),
    chain(
        "MaxPool:indices",
        [node("MaxPool", "x", "y where", "", kernel_shape=[2, 2])],
        {"x": distinct(1, 2, 4, 3)},
        outputs=("y",),
    ),
    pooled("MaxPool:storage_order", 2, storage_order=1, strides=[2, 2]),
    pooled("AveragePool:with pads", 2, kernel_shape=[3, 3], pads=[1, 1, 0, 1], count_include_pad=1),
    pooled(
        "AveragePool:with pads, ceil",
        2,
        kernel_shape=[3, 3],
        strides=[2, 2],
        pads=[1, 1, 0, 1],
        count_include_pad=1,
        ceil_mode=1,
    ),
    pooled("LpPool:p 1", 2, p=1, kernel_shape=[3, 2]),
    pooled("LpPool:p 3", 2, p=3, pads=[1, 1, 0, 0]),
    pooled("LpPool:p 4", 1, p=4),
    single(
        "LpPool:zeros",
        {"x": np.zeros((1, 1, 4), np.float32)},
        attrs={"kernel_shape": [2]},
        expected=lambda inputs, r: {"x": np.zeros((1, 1, 4))},
    ),
    single("GlobalAveragePool", {"x": distinct(2, 3, 4, 5)}),
    single("GlobalAveragePool:1-D", {"x": distinct(2, 3, 4)}),
    single("GlobalAveragePool:3-D", {"x": distinct(2, 2, 2, 2, 3)}),
    single("GlobalMaxPool", {"x": distinct(2, 3, 4, 5)}),
    single("GlobalMaxPool:1-D", {"x": distinct(2, 3, 4)}, expected=of_stock("GlobalMaxPool", 0.25)),
    single("GlobalMaxPool:ties", {"x": TIED}, expected=shared),
    global_power("GlobalLpPool", distinct(2, 3, 2, 5), 2),
    global_power("GlobalLpPool:p 1", distinct(2, 3, 4), 1),
    global_power("GlobalLpPool:p 3", distinct(1, 2, 2, 5), 3),
    single(
        "MaxUnpool",
        {"x": distinct(1, 1, 2, 2), "where": INDICES},
        attrs={"kernel_shape": [2, 2], "strides": [2, 2]},
        symbols=False,
    ),
]
