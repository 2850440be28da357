"""Rows of ResizeGrad: the weights of each axis written element by element, in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from support.lowering import NO_KERNEL, Array, Row, node, normals

Sizes = tuple[int, ...]
F32 = np.float32


def _coordinate(
    kind: str, o: int, scale: F32, before: int, after: int, roi: Sequence[float]
) -> F32:
    """In float32: ties and floors are decided there."""
    at, half = F32(o), F32(0.5)
    if kind == "asymmetric":
        return at / scale
    if kind == "align_corners":
        return F32(0) if after == 1 else at * F32(before - 1) / F32(after - 1)
    if kind == "tf_half_pixel_for_nn":
        return (at + half) / scale
    if kind == "tf_crop_and_resize":
        start, end, span = F32(roi[0]), F32(roi[1]), F32(before - 1)
        if after == 1:
            return half * (start + end) * span
        return start * span + at * (end - start) * span / F32(after - 1)
    if kind == "pytorch_half_pixel" and after == 1:
        return F32(0)
    centre = (at + half) / scale - half
    if kind == "half_pixel_symmetric":
        adjustment = F32(after) / (scale * F32(before))
        return F32(before) / F32(2) * (F32(1) - adjustment) + centre
    return centre


_ROUNDED: dict[str, Callable[[float], float]] = {
    "round_prefer_floor": lambda x: math.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: math.floor(x + 0.5),
    "floor": math.floor,
    "ceil": math.ceil,
}


def _kernel(t: float, a: float | None) -> float:
    t = abs(t)
    if a is None:
        return max(0.0, 1 - t)
    if t <= 1:
        return (a + 2) * t**3 - (a + 3) * t**2 + 1
    return a * (t**3 - 5 * t**2 + 8 * t - 4) if t < 2 else 0.0


def axis_weights(before: int, after: int, scale: F32, roi: Sequence[float], **attrs: Any) -> Array:
    """(after, before): what each output element takes from each input element."""
    kind = attrs.get("coordinate_transformation_mode", "half_pixel")
    mode, weights = attrs.get("mode", "nearest"), np.zeros((after, before))
    if scale == 1:
        return np.eye(before)
    width = max(1.0, 1 / float(scale)) if attrs.get("antialias") else 1.0
    a = float(F32(attrs.get("cubic_coeff_a", -0.75))) if mode == "cubic" else None
    for o in range(after):
        x = float(_coordinate(kind, o, scale, before, after, roi))
        if kind == "tf_crop_and_resize" and not 0 <= x <= before - 1:
            continue
        if mode == "nearest":
            index = int(_ROUNDED[attrs.get("nearest_mode", "round_prefer_floor")](x))
            weights[o, min(max(index, 0), before - 1)] = 1
            continue
        reach = math.ceil(2 * width) + 1
        for tap in range(math.floor(x) - reach, math.floor(x) + reach + 2):
            inside = min(max(tap, 0), before - 1)
            if tap == inside or not attrs.get("exclude_outside"):
                weights[o, inside] += _kernel((tap - x) / width, a)
        if attrs.get("antialias") or attrs.get("exclude_outside"):
            weights[o] /= weights[o].sum()
    return weights


def resize_row(
    name: str,
    shape: Sizes = (2, 3, 4, 5),
    scales: Sequence[float] | None = None,
    sizes: Sizes | None = None,
    roi: Sequence[float] = (),
    fed: bool = False,
    **attrs: Any,
) -> Row:
    """``scales`` or ``sizes`` for every axis, or for ``axes``; as constants, or ``fed``."""
    axes = attrs.get("axes", tuple(range(len(shape))))
    if sizes is None:
        assert scales is not None
        factors = [F32(s) for s in scales]
        sizes = tuple(math.floor(shape[a] * float(s)) for a, s in zip(axes, factors, strict=True))
    else:
        factors = [F32(n) / F32(shape[a]) for a, n in zip(axes, sizes, strict=True)]
    out = list(shape)
    for axis, size in zip(axes, sizes, strict=True):
        out[axis] = size
    x, dy = normals(121, shape, tuple(out))
    dx = dy.astype(np.float64)
    for place, axis in enumerate(axes):
        area = (roi[place], roi[place + len(axes)]) if roi else (0.0, 1.0)
        w = axis_weights(shape[axis], out[axis], factors[place], area, **attrs)
        dx = np.moveaxis(np.tensordot(dx, w, (axis, 0)), -1, axis)
    constants: dict[str, Array] = {}
    if roi:
        constants["roi"] = np.array(roi, F32)
    if scales is not None:
        constants["scales"] = np.array(scales, F32)
    names = ["dy", "x", "roi" if roi else "_", "scales" if scales is not None else "_"]
    while names[-1] == "_":
        names.pop()
    feeds = {"dy": dy, "x": x}
    return Row(
        name,
        (node("ResizeGrad", " ".join(names), "dx", **attrs),),
        {**feeds, **constants} if fed else feeds,
        {"dx": dx},
        constants={} if fed else constants,
        sized=("roi", "scales"),
        reference=NO_KERNEL,
    )


_UP, _DOWN, _ODD = (1, 1, 2, 2), (1, 1, 0.5, 0.6), (1, 1, 1.7, 2.3)
_MODES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_half_pixel_for_nn",
)
_CROP = {
    "coordinate_transformation_mode": "tf_crop_and_resize",
    "roi": (0, 0, 0.2, -0.3, 1, 1, 0.9, 0.8),
    "sizes": (2, 3, 6, 4),
}

_SPECS: dict[str, dict[str, Any]] = {
    "": {"scales": _UP},
    "linear": {"scales": _UP, "mode": "linear"},
    "cubic": {"scales": _UP, "mode": "cubic"},
    "no scales": {"sizes": (2, 3, 7, 5), "mode": "linear"},
    "fed scales": {"scales": _ODD, "mode": "linear", "fed": True},
    "smaller, linear": {"scales": _DOWN, "mode": "linear"},
    "smaller, cubic": {"scales": _DOWN, "mode": "cubic"},
    "cubic, exclude_outside": {"scales": _ODD, "mode": "cubic", "exclude_outside": 1},
    "cubic, coefficient": {"scales": _ODD, "mode": "cubic", "cubic_coeff_a": -0.5},
    "antialias, linear": {"scales": _DOWN, "mode": "linear", "antialias": 1},
    "antialias, cubic": {"scales": _DOWN, "mode": "cubic", "antialias": 1},
    "antialias, cubic, exclude_outside": {
        "scales": (1, 1, 0.4, 0.7), "shape": (1, 2, 9, 8), "mode": "cubic", "antialias": 1,
        "exclude_outside": 1,
    },
    "antialias, larger": {"scales": _ODD, "mode": "linear", "antialias": 1},
    "axes": {"axes": (2, 3), "scales": (2.5, 0.5), "mode": "linear"},
    "axes, turned": {"axes": (3, 2), "sizes": (7, 3), "mode": "linear"},
    "one row": {"sizes": (2, 3, 1, 9), "mode": "linear"},
    "one row, pytorch": {
        "sizes": (2, 3, 1, 9), "mode": "linear",
        "coordinate_transformation_mode": "pytorch_half_pixel",
    },
    "one row, align_corners": {
        "sizes": (2, 3, 1, 9), "mode": "linear", "coordinate_transformation_mode": "align_corners",
    },
    "1-d": {"shape": (2, 3, 7), "scales": (1, 1, 2.5), "mode": "linear"},
    "3-d": {"shape": (1, 2, 3, 4, 2), "scales": (1, 1, 2, 1.5, 3), "mode": "linear"},
    "3-d, nearest": {"shape": (1, 2, 3, 4, 2), "scales": (1, 1, 2, 0.5, 3)},
    "matrix": {"shape": (4, 5), "scales": (2, 1.5), "mode": "linear"},
    "channels too, nearest": {"shape": (2, 3, 4), "scales": (2, 2, 1)},
    "crop": {**_CROP, "mode": "linear"},
    "crop, nearest": _CROP,
    "crop, fed": {**_CROP, "mode": "linear", "fed": True},
    "crop, one row": {**_CROP, "mode": "linear", "sizes": (2, 3, 1, 4)},
    "crop, cubic": {**_CROP, "mode": "cubic"},
    "crop, one axis of scale 1": {**_CROP, "mode": "linear", "sizes": (2, 3, 6, 5)},
    "crop, one axis of scale 1, fed": {
        **_CROP, "mode": "cubic", "sizes": None, "scales": (1, 1, 1.5, 1), "fed": True,
    },
}  # fmt: skip
for _mode in _MODES[1:]:
    for _how in ("linear", "cubic", "nearest"):
        if _mode != "tf_half_pixel_for_nn" or _how == "nearest":
            _SPECS[f"{_mode}, {_how}"] = {
                "scales": _ODD, "mode": _how, "coordinate_transformation_mode": _mode,
            }  # fmt: skip
for _rounding in _ROUNDED:
    for _mode in ("half_pixel", "asymmetric"):
        for _word, _scales in (("larger", (1, 1, 2, 4)), ("smaller", (1, 1, 0.5, 0.6))):
            _SPECS[f"{_rounding}, {_mode}, {_word}"] = {
                "scales": _scales, "nearest_mode": _rounding,
                "coordinate_transformation_mode": _mode,
            }  # fmt: skip

TABLE = {
    name: partial(resize_row, name, **spec)
    for name, spec in ((f"ResizeGrad: {k}" if k else "ResizeGrad", v) for k, v in _SPECS.items())
}
