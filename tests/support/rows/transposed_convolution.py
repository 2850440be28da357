"""Rows of ConvTransposeGrad against a scatter of every tap, in float64."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from support.lowering import NO_KERNEL, Array, Row, node, normals

Sizes = tuple[int, ...]


@dataclass(frozen=True)
class Geometry:
    """Where taps go: the output is ``begin .. begin + size`` of what all taps fill."""

    strides: Sizes
    dilations: Sizes
    begin: Sizes
    size: Sizes

    def taps(self, kernel: Sizes, sizes: Sizes) -> Iterator[tuple[Sizes, tuple[Any, ...]]]:
        """Each tap with the places that it fills."""
        for at in itertools.product(*(range(k) for k in kernel)):
            first = [i * d for i, d in zip(at, self.dilations, strict=True)]
            yield at, (..., *(
                slice(f, f + s * (n - 1) + 1, s)
                for f, s, n in zip(first, self.strides, sizes, strict=True)
            ))  # fmt: skip


def geometry(sizes: Sizes, kernel: Sizes, **attrs: Any) -> tuple[Geometry, Sizes]:
    """Places by the rules of ONNX, and the sizes of all that taps fill."""
    count = len(sizes)
    strides = tuple(attrs.get("strides", (1,) * count))
    dilations = tuple(attrs.get("dilations", (1,) * count))
    extra = attrs.get("output_padding", (0,) * count)
    spans = [d * (k - 1) + 1 for d, k in zip(dilations, kernel, strict=True)]
    whole = [s * (n - 1) + e for s, n, e in zip(strides, sizes, spans, strict=True)]
    grown = [w + e for w, e in zip(whole, extra, strict=True)]
    auto = attrs.get("auto_pad", "NOTSET")
    given = attrs.get("output_shape")
    if given or auto.startswith("SAME"):
        wanted = given or [n * s for n, s in zip(sizes, strides, strict=True)]
        totals = [max(g - w, 0) for g, w in zip(grown, wanted, strict=True)]
        begin = [t // 2 if auto == "SAME_UPPER" else t - t // 2 for t in totals]
        size = list(given or (g - t for g, t in zip(grown, totals, strict=True)))
    else:
        pads = attrs.get("pads", (0,) * (2 * count))
        begin = list(pads[:count])
        size = [g - p - q for g, p, q in zip(grown, pads, pads[count:], strict=False)]
    full = tuple(max(w, b + s) for w, b, s in zip(whole, begin, size, strict=True))
    return Geometry(strides, dilations, tuple(begin), tuple(size)), full


def conv_transpose_row(
    name: str, channels: Sizes, sizes: Sizes, kernel: Sizes, outputs: str = "dx dw db",
    declared: bool = True, batch: int = 2, **attrs: Any,
) -> Row:  # fmt: skip
    """``channels`` is (input, output) of all groups together."""
    group = attrs.get("group", 1)
    place, full = geometry(sizes, kernel, **attrs)
    each = (channels[0] // group, channels[1] // group)
    x, w, dy = normals(
        111, (batch, channels[0], *sizes), (channels[0], each[1], *kernel),
        (batch, channels[1], *place.size),
    )  # fmt: skip
    grown = np.zeros((batch, group, each[1], *full))
    inside = tuple(slice(b, b + s) for b, s in zip(place.begin, place.size, strict=True))
    grown[(..., *inside)] = dy.reshape(batch, group, each[1], *place.size)
    filters = w.astype(np.float64).reshape(group, *each, *kernel)
    wide = x.astype(np.float64).reshape(batch, group, each[0], *sizes)
    dx, dw = np.zeros(wide.shape), np.zeros(filters.shape)
    for at, where in place.taps(kernel, sizes):
        seen = grown[where]
        dx += np.einsum("bgo...,gio->bgi...", seen, filters[(..., *at)])
        flat = wide.reshape(*wide.shape[:3], -1), seen.reshape(*seen.shape[:3], -1)
        dw[(..., *at)] = np.einsum("bgip,bgop->gio", *flat)
    values: dict[str, Array] = {
        "dx": dx.reshape(x.shape),
        "dw": dw.reshape(w.shape),
        "db": dy.sum((0, *range(2, dy.ndim)), dtype=np.float64),
    }
    shown = {"kernel_shape": kernel} if declared else {}
    return Row(
        name,
        (node("ConvTransposeGrad", "dy x w", outputs, **shown, **attrs),),
        {"dy": dy, "x": x, "w": w},
        {key: values[key] for key in outputs.split() if key != "_"},
        sized=("w",),
        reference=NO_KERNEL,
    )


_row = partial(conv_transpose_row, channels=(3, 4), sizes=(4, 5), kernel=(3, 2))

_ROWS: dict[str, Callable[[str], Row]] = {
    "ConvTransposeGrad": partial(_row, strides=(2, 2), pads=(1, 0, 0, 1)),
    "ConvTransposeGrad: plain": _row,
    "ConvTransposeGrad: 1x1": partial(_row, kernel=(1, 1)),
    "ConvTransposeGrad: no bias": partial(_row, outputs="dx dw", strides=(2, 1)),
    "ConvTransposeGrad: only the input": partial(_row, outputs="dx"),
    "ConvTransposeGrad: only the weight": partial(_row, outputs="_ dw"),
    "ConvTransposeGrad: asymmetric pads": partial(_row, pads=(2, 0, 0, 1), kernel=(3, 3)),
    "ConvTransposeGrad: dilation": partial(_row, dilations=(2, 3), strides=(1, 2)),
    "ConvTransposeGrad: output_padding": partial(
        _row, strides=(2, 3), output_padding=(1, 2), pads=(1, 1, 1, 1), kernel=(3, 3)
    ),
    "ConvTransposeGrad: output_padding without pads": partial(
        _row, strides=(2, 3), output_padding=(1, 2)
    ),
    "ConvTransposeGrad: output_padding beyond the stride": partial(
        _row, dilations=(3, 3), output_padding=(2, 1)
    ),
    "ConvTransposeGrad: output_shape": partial(_row, strides=(2, 2), output_shape=(8, 9)),
    "ConvTransposeGrad: output_shape, odd": partial(_row, strides=(3, 2), output_shape=(9, 9)),
    "ConvTransposeGrad: output_shape, SAME_UPPER": partial(
        _row, strides=(3, 2), output_shape=(9, 9), auto_pad="SAME_UPPER"
    ),
    "ConvTransposeGrad: output_shape and output_padding": partial(
        _row, strides=(3, 2), output_shape=(9, 10), output_padding=(1, 1)
    ),
    "ConvTransposeGrad: SAME_UPPER": partial(
        _row, strides=(2, 2), kernel=(3, 5), auto_pad="SAME_UPPER"
    ),
    "ConvTransposeGrad: SAME_LOWER": partial(
        _row, strides=(2, 2), kernel=(3, 5), auto_pad="SAME_LOWER"
    ),
    "ConvTransposeGrad: SAME_UPPER, stride beyond the kernel": partial(
        _row, strides=(4, 3), kernel=(3, 2), auto_pad="SAME_UPPER"
    ),
    "ConvTransposeGrad: VALID": partial(_row, strides=(2, 2), auto_pad="VALID"),
    "ConvTransposeGrad: group": partial(_row, channels=(4, 6), group=2, strides=(2, 1)),
    "ConvTransposeGrad: depthwise": partial(
        _row, channels=(4, 4), group=4, sizes=(6, 6), strides=(2, 2), pads=(1, 1, 1, 1),
        kernel=(3, 3),
    ),
    "ConvTransposeGrad: group, one to three": partial(_row, channels=(2, 6), group=2),
    "ConvTransposeGrad: 1-d": partial(_row, sizes=(9,), kernel=(4,), strides=(2,), pads=(1, 1)),
    "ConvTransposeGrad: 3-d, group": partial(
        _row, channels=(4, 2), group=2, sizes=(2, 3, 4), kernel=(2, 3, 2), strides=(2, 1, 2),
        output_padding=(1, 0, 1),
    ),
    "ConvTransposeGrad: many taps": partial(_row, kernel=(7, 6), pads=(3, 2, 3, 2)),
    "ConvTransposeGrad: kernel from the weight": partial(_row, declared=False, strides=(2, 2)),
}  # fmt: skip

TABLE = {name: partial(build, name) for name, build in _ROWS.items()}
