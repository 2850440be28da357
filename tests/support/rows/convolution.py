"""Rows of ConvGrad against sums over kernel taps in float64."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
from support.lowering import WRONG_IN_REFERENCE, Array, Row, node, normals

Sizes = tuple[int, ...]


def pads_of(auto_pad: str, sizes: Sizes, extent: Sizes, strides: Sizes) -> Sizes:
    """(begin..., end...) that an auto_pad stands for."""
    if not auto_pad.startswith("SAME"):
        return (0,) * (2 * len(sizes))
    outs = [math.ceil(size / stride) for size, stride in zip(sizes, strides, strict=True)]
    totals = [
        max((out - 1) * stride + span - size, 0)
        for out, stride, span, size in zip(outs, strides, extent, sizes, strict=True)
    ]
    small, large = [t // 2 for t in totals], [t - t // 2 for t in totals]
    return tuple(small + large if auto_pad == "SAME_UPPER" else large + small)


def conv_gradients(
    dy: Array, x: Array, w: Array, strides: Sizes, dilations: Sizes, pads: Sizes, group: int
) -> dict[str, Array]:
    """dX, dW, dB in float64: for each tap, the inputs it saw."""
    dy, x, w = (value.astype(np.float64) for value in (dy, x, w))
    rank, sizes = len(strides), x.shape[2:]
    around = list(zip(pads[:rank], pads[rank:], strict=True))
    padded = np.pad(x, [(0, 0), (0, 0), *around])
    grown, dw = np.zeros_like(padded), np.zeros_like(w)
    grouped = dy.reshape(dy.shape[0], group, dy.shape[1] // group, -1)
    filters = w.reshape(group, -1, *w.shape[1:])
    for tap in np.ndindex(*w.shape[2:]):
        seen = tuple(
            slice(t * d, t * d + s * (out - 1) + 1, s)
            for t, d, s, out in zip(tap, dilations, strides, dy.shape[2:], strict=True)
        )
        view = padded[(..., *seen)].reshape(x.shape[0], group, w.shape[1], -1)
        of_tap = np.einsum("ngos,ngis->goi", grouped, view)
        dw[(..., *tap)] = of_tap.reshape(w.shape[:2])
        back = np.einsum("ngos,goi->ngis", grouped, filters[(..., *tap)])
        grown[(..., *seen)] += back.reshape(*x.shape[:2], *dy.shape[2:])
    inner = tuple(slice(low, low + size) for (low, _), size in zip(around, sizes, strict=True))
    db = dy.sum((0, *range(2, dy.ndim)))
    return {"dx": grown[(..., *inner)], "dw": dw, "db": db}


def conv_row(
    name: str,
    channels: tuple[int, int],
    sizes: Sizes,
    kernel: Sizes,
    outputs: str = "dx dw db",
    declared: bool = True,
    batch: int = 2,
    **attrs: Any,
) -> Row:
    """A row with (input, output) channels; attributes as in the node."""
    rank, group = len(sizes), attrs.get("group", 1)
    strides = tuple(attrs.get("strides", (1,) * rank))
    dilations = tuple(attrs.get("dilations", (1,) * rank))
    extent = tuple(d * (k - 1) + 1 for d, k in zip(dilations, kernel, strict=True))
    auto_pad = attrs.get("auto_pad", "NOTSET")
    pads = tuple(attrs.get("pads") or pads_of(auto_pad, sizes, extent, strides))
    outs = tuple(
        (size + pads[i] + pads[i + rank] - extent[i]) // strides[i] + 1
        for i, size in enumerate(sizes)
    )
    x, w, dy = normals(
        7,
        (batch, channels[0], *sizes),
        (channels[1], channels[0] // group, *kernel),
        (batch, channels[1], *outs),
    )
    if declared:
        attrs["kernel_shape"] = list(kernel)
    gradients = conv_gradients(dy, x, w, strides, dilations, pads, group)
    return Row(
        name,
        (node("ConvGrad", "dy x w", outputs, **attrs),),
        {"dy": dy, "x": x, "w": w},
        {key: value for key, value in gradients.items() if key in outputs.split()},
        sized=("w",),
        reference=WRONG_IN_REFERENCE if auto_pad.startswith("SAME") else "",
    )


_SPECS: dict[str, dict[str, Any]] = {
    "": {"kernel": (3, 3), "pads": [1] * 4},
    "1x1": {"kernel": (1, 1)},
    "1x1, stride 2": {"kernel": (1, 1), "strides": [2, 2]},
    "1x1, pads": {"kernel": (1, 1), "pads": [1, 0, 0, 1]},
    "1x1, stride 3, rows never read": {"kernel": (1, 1), "strides": [3, 3]},
    "kernel not declared": {"kernel": (3, 3), "declared": False},
    "asymmetric kernel": {"kernel": (3, 2), "strides": [1, 2]},
    "asymmetric pads": {"kernel": (3, 3), "pads": [0, 1, 2, 1]},
    "pads beyond the kernel": {"kernel": (2, 2), "pads": [3, 2, 2, 3]},
    "stride 2, nothing left over": {"kernel": (3, 3), "strides": [2, 2], "sizes": (7, 9)},
    "stride 2, one left over": {"kernel": (3, 3), "strides": [2, 2], "sizes": (8, 6)},
    "stride 3, two left over": {"kernel": (3, 3), "strides": [3, 3], "sizes": (8, 11)},
    "stride beyond the kernel": {"kernel": (2, 2), "strides": [3, 4], "sizes": (9, 10)},
    "stride 2, asymmetric pads": {"kernel": (3, 3), "strides": [2, 2], "pads": [1, 0, 0, 1]},
    "dilation": {"kernel": (3, 3), "dilations": [2, 1], "pads": [1] * 4},
    "dilation and stride": {"kernel": (3, 3), "dilations": [2, 2], "strides": [2, 3]},
    "dilation 3, stride 2": {"kernel": (2, 2), "dilations": [3, 3], "strides": [2, 2]},
    "5x5": {"kernel": (5, 5), "pads": [2] * 4},
    "few positions, many channels": {"kernel": (3, 3), "channels": (12, 16), "sizes": (3, 3)},
    "1x1, one position": {"kernel": (1, 1), "channels": (12, 16), "sizes": (1, 1)},
    "one sample": {"kernel": (3, 3), "pads": [1] * 4, "batch": 1},
    "VALID": {"kernel": (3, 3), "auto_pad": "VALID", "strides": [2, 2]},
    "SAME_UPPER": {"kernel": (3, 3), "auto_pad": "SAME_UPPER"},
    "SAME_UPPER, even kernel": {"kernel": (2, 4), "auto_pad": "SAME_UPPER"},
    "SAME_LOWER, even kernel": {"kernel": (2, 4), "auto_pad": "SAME_LOWER"},
    "SAME_UPPER, stride 2": {"kernel": (3, 3), "auto_pad": "SAME_UPPER", "strides": [2, 2]},
    "SAME_LOWER, stride 2": {"kernel": (3, 4), "auto_pad": "SAME_LOWER", "strides": [2, 2]},
    "SAME_UPPER, stride beyond": {"kernel": (2, 1), "auto_pad": "SAME_UPPER", "strides": [3, 3]},
    "SAME_LOWER, group": {
        "kernel": (2, 3),
        "auto_pad": "SAME_LOWER",
        "strides": [2, 2],
        "group": 2,
    },
    "group": {"kernel": (3, 3), "group": 2, "channels": (4, 6), "pads": [1] * 4},
    "group, stride 3, two left over": {
        "kernel": (3, 3),
        "group": 2,
        "channels": (4, 6),
        "strides": [3, 3],
        "sizes": (8, 11),
    },
    "group, dilation": {"kernel": (3, 2), "group": 2, "dilations": [2, 3], "strides": [1, 2]},
    "group, 1x1": {"kernel": (1, 1), "group": 2},
    "depthwise": {"kernel": (3, 3), "group": 4, "pads": [1] * 4},
    "depthwise, stride 2": {"kernel": (3, 3), "group": 4, "pads": [1] * 4, "strides": [2, 2]},
    "depthwise, stride 2, many positions": {
        "kernel": (3, 3),
        "group": 4,
        "pads": [1] * 4,
        "strides": [2, 2],
        "sizes": (18, 17),
    },
    "depthwise, dilation and stride, many positions": {
        "kernel": (2, 3),
        "group": 4,
        "dilations": [2, 3],
        "strides": [2, 2],
        "sizes": (19, 24),
    },
    "depthwise, dilation": {
        "kernel": (3, 3),
        "group": 4,
        "pads": [0, 2, 1, 2],
        "dilations": [1, 2],
    },
    "depthwise, few positions": {"kernel": (3, 3), "group": 4, "pads": [1] * 4, "sizes": (3, 3)},
    "depthwise, two filters each": {"kernel": (3, 3), "group": 4, "channels": (4, 8)},
    "1-d": {"kernel": (5,), "sizes": (17,), "pads": [2, 1]},
    "1-d, 16 taps": {"kernel": (16,), "sizes": (40,)},
    "1-d, 20 taps": {"kernel": (20,), "sizes": (45,), "strides": [2], "pads": [3, 0]},
    "1-d, group": {"kernel": (3,), "sizes": (12,), "group": 2, "strides": [2]},
    "1-d, stride 3, dilation 2": {
        "kernel": (4,),
        "sizes": (29,),
        "strides": [3],
        "dilations": [2],
        "pads": [2, 1],
    },
    "1-d, depthwise": {"kernel": (3,), "sizes": (25,), "group": 4, "pads": [1, 1]},
    "1-d, SAME_UPPER": {"kernel": (4,), "sizes": (13,), "strides": [3], "auto_pad": "SAME_UPPER"},
    "3-d": {"kernel": (2, 3, 2), "sizes": (4, 5, 4), "pads": [0, 1, 1, 1, 1, 0]},
    "3-d, stride": {"kernel": (3, 2, 2), "sizes": (6, 5, 4), "strides": [2, 2, 1]},
    "3-d, group": {"kernel": (2, 2, 2), "sizes": (4, 4, 4), "group": 2, "dilations": [2, 1, 1]},
    "3-d, depthwise": {"kernel": (2, 2, 2), "sizes": (4, 4, 4), "group": 4},
    "3-d, many taps": {"kernel": (6, 5, 2), "sizes": (8, 7, 4), "strides": [2, 1, 1]},
    "only dX": {"kernel": (3, 3), "outputs": "dx"},
    "only dW": {"kernel": (3, 3), "outputs": "_ dw", "pads": [1] * 4},
    "only dB": {"kernel": (3, 3), "outputs": "_ _ db"},
    "dX and dB": {"kernel": (3, 3), "outputs": "dx _ db"},
}

TABLE = {
    name: partial(conv_row, name, **{"channels": (4, 4), "sizes": (7, 6), **spec})
    for name, spec in ((f"ConvGrad: {key}" if key else "ConvGrad", s) for key, s in _SPECS.items())
}
