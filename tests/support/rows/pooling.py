"""Rows of pooling gradients against differences of onnxruntime's own forward ops."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from support.lowering import WRONG_IN_REFERENCE, Array, Row, node, normals, slopes, stock

Sizes = tuple[int, ...]


def distinct(shape: Sizes) -> Array:
    """Whole numbers in random order: a maximum stays the maximum within 0.25."""
    order = np.random.default_rng(3).permutation(int(np.prod(shape)))
    return order.reshape(shape).astype(np.float32)


def max_pool_row(name: str, sizes: Sizes, zeros: bool = False, **attrs: Any) -> Row:
    """MaxPool with indices and its gradient; ``zeros``: every window a tie, as after ReLU."""
    x = distinct((2, 3, *sizes))
    if zeros:
        x = np.zeros_like(x)
    forward = stock("MaxPool", {"x": x}, 2, **attrs)
    y, indices = forward(x=x)
    (dy,) = normals(5, y.shape)
    if zeros:
        dx = np.zeros(x.size)
        np.add.at(dx, indices.ravel(), dy.ravel().astype(np.float64))
        dx = dx.reshape(x.shape)
    else:
        dx = slopes(lambda value: forward(x=value)[0], x, dy, 0.25)
    nodes = (
        node("MaxPool", "x", "y mask", "", **attrs),
        node("MaxPoolGrad", "dy mask", "dx", "", **attrs),
    )
    backwards = attrs.get("storage_order", 0) and len(sizes) > 1
    reference = WRONG_IN_REFERENCE if backwards else ""
    expected = {"y": y.astype(np.float64), "dx": dx}
    return Row(name, nodes, {"x": x, "dy": dy}, expected, reference=reference)


def average_pool_row(
    name: str, sizes: Sizes, dy_name: str = "y_grad", wrong: bool = False, **attrs: Any
) -> Row:
    """AveragePool and its gradient; the gradient op knows the input's shape only from it."""
    x = np.zeros((2, 3, *sizes), np.float32)
    forward = stock("AveragePool", {"x": x}, **attrs)
    (dy,) = normals(5, forward(x=x)[0].shape)
    dx = slopes(lambda value: forward(x=value)[0], x, dy, 1.0)
    nodes = (
        node("AveragePool", "x", "y", "", **attrs),
        node("AveragePoolGrad", dy_name, "dx", "", **attrs),
    )
    gradient = nodes[1]
    nodes = (nodes[0], type(gradient)(**{**vars(gradient), "name": "AveragePool_node_Grad/g_0"}))
    reference = WRONG_IN_REFERENCE if wrong else ""
    return Row(name, nodes, {"x": x, dy_name: dy}, {"dx": dx}, reference=reference)


_MAX: dict[str, dict[str, Any]] = {
    "": {"strides": [2, 2]},
    "ties": {"strides": [2, 2], "zeros": True},
    "overlap": {"kernel_shape": [3, 3], "strides": [2, 2]},
    "overlap, pads": {"kernel_shape": [3, 3], "strides": [2, 1], "pads": [1, 1, 1, 0]},
    "overlap, ties": {"kernel_shape": [3, 3], "pads": [1] * 4, "zeros": True},
    "gaps": {"strides": [3, 3]},
    "pads": {"strides": [2, 2], "pads": [1, 0, 0, 1]},
    "ceil_mode": {"kernel_shape": [3, 2], "strides": [3, 2], "ceil_mode": 1, "sizes": (7, 7)},
    "dilation": {"dilations": [2, 1]},
    "dilation, apart": {"dilations": [2, 2], "strides": [3, 3]},
    "SAME_UPPER": {"auto_pad": "SAME_UPPER", "strides": [2, 2], "sizes": (7, 5)},
    "SAME_LOWER": {"auto_pad": "SAME_LOWER", "kernel_shape": [3, 3], "strides": [2, 2]},
    "VALID": {"auto_pad": "VALID", "strides": [2, 2]},
    "storage_order 1": {"storage_order": 1, "strides": [2, 2]},
    "storage_order 1, overlap": {"storage_order": 1},
    "1-d": {"kernel_shape": [3], "strides": [3], "sizes": (11,)},
    "1-d, overlap": {"kernel_shape": [3], "sizes": (9,)},
    "1-d, storage_order 1": {"kernel_shape": [2], "sizes": (9,), "storage_order": 1},
    "3-d": {"kernel_shape": [2] * 3, "strides": [2] * 3, "sizes": (4, 4, 3)},
    "3-d, overlap": {"kernel_shape": [2] * 3, "sizes": (3, 4, 3)},
    "3-d, storage_order 1": {"kernel_shape": [2] * 3, "sizes": (3, 4, 2), "storage_order": 1},
}

#: where the kernel's vectors are cut
_LARGER: dict[str, dict[str, Any]] = {
    "": {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4, "sizes": (9, 37)},
    "one wide": {"kernel_shape": [1, 5], "strides": [1, 3], "dilations": [1, 2], "sizes": (2, 50)},
    "wide pads": {"kernel_shape": [3, 4], "pads": [2, 3, 2, 3], "sizes": (4, 18)},
    "one output": {"kernel_shape": [5, 5], "sizes": (5, 5), "strides": [7, 7]},
}

_AVERAGE: dict[str, dict[str, Any]] = {
    "": {"strides": [2, 2]},
    "whole input": {"kernel_shape": [6, 8]},
    "default stride": {},
    "rest left over": {"strides": [2, 2], "sizes": (7, 5)},
    "overlap": {"kernel_shape": [3, 3], "strides": [2, 1]},
    "gaps": {"strides": [3, 4]},
    "pads": {"strides": [2, 2], "pads": [1, 0, 0, 1]},
    "pads counted": {"strides": [2, 2], "pads": [1, 0, 0, 1], "count_include_pad": 1},
    "overlap, pads": {"kernel_shape": [3, 3], "pads": [1, 2, 1, 0]},
    "overlap, pads counted": {"kernel_shape": [3, 3], "pads": [1, 2, 1, 0], "count_include_pad": 1},
    "ceil_mode": {"kernel_shape": [3, 2], "strides": [2, 2], "ceil_mode": 1, "sizes": (8, 7)},
    "ceil_mode, pads": {
        "kernel_shape": [3, 3],
        "strides": [2, 2],
        "ceil_mode": 1,
        "pads": [1, 1, 0, 1],
    },
    "ceil_mode, pads counted": {
        "wrong": True,
        "kernel_shape": [3, 2],
        "strides": [2, 2],
        "ceil_mode": 1,
        "pads": [1, 0, 1, 1],
        "count_include_pad": 1,
        "sizes": (8, 7),
    },
    "dilation": {"dilations": [2, 3], "pads": [1, 1, 0, 0], "wrong": True},
    "dilation, stride": {
        "dilations": [2, 1],
        "strides": [2, 2],
        "count_include_pad": 1,
        "wrong": True,
    },
    "SAME_UPPER": {
        "auto_pad": "SAME_UPPER",
        "kernel_shape": [3, 3],
        "strides": [2, 2],
        "sizes": (7, 5),
        "wrong": True,
    },
    "SAME_LOWER": {
        "auto_pad": "SAME_LOWER",
        "kernel_shape": [3, 2],
        "strides": [2, 1],
        "wrong": True,
    },
    "SAME_UPPER, counted": {
        "wrong": True,
        "auto_pad": "SAME_UPPER",
        "kernel_shape": [3, 3],
        "count_include_pad": 1,
    },
    "VALID": {"auto_pad": "VALID", "kernel_shape": [3, 3], "strides": [2, 2]},
    "1-d": {"kernel_shape": [3], "strides": [2], "sizes": (10,)},
    "1-d, tiles": {"kernel_shape": [5], "strides": [5], "sizes": (10,)},
    "3-d": {"kernel_shape": [2] * 3, "strides": [2, 1, 2], "sizes": (4, 3, 5), "wrong": True},
    "3-d, tiles": {
        "kernel_shape": [2, 1, 3],
        "strides": [2, 1, 3],
        "sizes": (4, 3, 6),
        "wrong": True,
    },
    "found by node name": {"dy_name": "other", "strides": [2, 2]},
}

_DEFAULT: dict[str, Any] = {"kernel_shape": [2, 2], "sizes": (6, 8)}

TABLE = {
    name: partial(build, name, **{**_DEFAULT, **spec})
    for op, build, specs in (
        ("MaxPool", max_pool_row, _LARGER),
        ("MaxPoolGrad", max_pool_row, _MAX),
        ("AveragePoolGrad", average_pool_row, _AVERAGE),
    )
    for name, spec in ((f"{op}: {key}" if key else op, s) for key, s in specs.items())
}
