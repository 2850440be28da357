"""Forward ops that onnxruntime runs itself and that have a kernel of our own too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from support.lowering import Array, Row, node, stock


def forward_row(
    name: str, feeds: dict[str, Array], sized: tuple[str, ...] = (), **attrs: Any
) -> Row:
    """A row of a standard op: what stock onnxruntime answers to the same feeds."""
    op_type = name.split(":")[0]
    (y,) = stock(op_type, feeds, **attrs)(**feeds)
    nodes = (node(op_type, " ".join(feeds), "y", domain="", **attrs),)
    return Row(name, nodes, feeds, {"y": y.astype(np.float64)}, sized=sized)


def conv(
    name: str, channels: int, size: tuple[int, int], kernel: tuple[int, int], **attrs: Any
) -> Row:
    rng = np.random.default_rng(channels)
    feeds = {
        "x": rng.standard_normal((2, channels, *size)).astype(np.float32),
        "w": rng.standard_normal((channels, 1, *kernel)).astype(np.float32),
        "b": rng.standard_normal(channels).astype(np.float32),
    }
    return forward_row(name, feeds, ("w",), group=channels, kernel_shape=kernel, **attrs)


def _gelu(name: str, **attrs: Any) -> Row:
    rng = np.random.default_rng(5)
    x = 3 * rng.standard_normal((3, 5, 37))
    return forward_row(name, {"x": x.astype(np.float32)}, **attrs)


TABLE: dict[str, Callable[[], Row]] = {
    "Conv": lambda: conv("Conv", 5, (7, 9), (3, 3), pads=(1, 1, 1, 1)),
    "Conv:depthwise strides": lambda: conv(
        "Conv:depthwise strides", 3, (11, 8), (5, 3), strides=(3, 2), pads=(0, 1, 2, 0)
    ),
    "Conv:depthwise dilations": lambda: conv(
        "Conv:depthwise dilations", 4, (13, 12), (3, 2), strides=(2, 1), dilations=(2, 3)
    ),
    "Gelu:stock": lambda: _gelu("Gelu:stock"),
    "Gelu:stock tanh": lambda: _gelu("Gelu:stock tanh", approximate="tanh"),
}
