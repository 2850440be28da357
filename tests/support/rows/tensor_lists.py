"""Rows of norms, tests and scales over several tensors, barriers, views and FakeQuant."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from support.lowering import NO_KERNEL, Array, Row, node, normals

from edge_train import dtypes

Shape = tuple[int, ...]
_SHAPES: Sequence[Shape] = ((3, 4), (), (5,), (2, 1, 2, 1, 2))


def _tensors(seed: int, shapes: Sequence[Shape]) -> dict[str, Array]:
    return {f"x{i}": value for i, value in enumerate(normals(seed, *shapes))}


def norm_row(name: str, shapes: Sequence[Shape] = _SHAPES) -> Row:
    feeds = _tensors(71, shapes)
    total = sum(float(np.sum(x.astype(np.float64) ** 2)) for x in feeds.values())
    nodes = (node("ReduceAllL2", " ".join(feeds), "y"),)
    return Row(name, nodes, feeds, {"y": np.array(np.sqrt(total))})


def finite_row(name: str) -> Row:
    x = np.array([[1, np.inf, -np.inf], [np.nan, 0, -5]], np.float32)
    nodes = (node("IsFinite", "x", "y"),)
    return Row(name, nodes, {"x": x}, {"y": np.isfinite(x)}, reference=NO_KERNEL)


def all_finite_row(name: str, last: float = 1.0, expected: bool = True, **attrs: Any) -> Row:
    feeds = {**_tensors(72, _SHAPES), "z": np.array([0, last], np.float32)}
    nodes = (node("IsAllFinite", " ".join(feeds), "y", **attrs),)
    return Row(name, nodes, feeds, {"y": np.array(expected)}, reference=NO_KERNEL)


def all_row(name: str, last: bool = True, shape: Shape = (3, 2), domain: str = "com.microsoft"
) -> Row:  # fmt: skip
    x = np.ones(shape, np.bool_)
    if x.size:
        x.ravel()[-1] = last
    nodes = (node("All", "x", "y", domain),)
    return Row(name, nodes, {"x": x}, {"y": np.array(last)}, reference=NO_KERNEL)


def group_row(name: str) -> Row:
    feeds = _tensors(73, _SHAPES)
    return Row(name, (node("Group", " ".join(feeds), "y"),), feeds, {"y": np.array([True])})


def pass_row(name: str) -> Row:
    feeds = _tensors(74, _SHAPES)
    expected = {f"y{i}": x.astype(np.float64) for i, x in enumerate(feeds.values())}
    nodes = (node("PassThrough", " ".join(feeds), " ".join(expected)),)
    return Row(name, nodes, feeds, expected, reference="it fails alone there")


def view_row(name: str, fed: bool = False) -> Row:
    shapes = {"a": (2, 3), "b": (4,), "c": (1, 2, 1)}
    (x,) = normals(75, (12,))
    numbers = {key: np.array(shape, np.int64) for key, shape in shapes.items()}
    parts = np.split(x.astype(np.float64), [6, 10])
    expected = {
        f"y{key}": part.reshape(shape)
        for (key, shape), part in zip(shapes.items(), parts, strict=True)
    }
    return Row(
        name,
        (node("View", "x a b c", " ".join(expected)),),
        {"x": x, **numbers} if fed else {"x": x},
        expected,
        constants={} if fed else numbers,
        sized=tuple(numbers),
        reference=NO_KERNEL,
    )


def mixed_row(name: str, to: int = dtypes.FLOAT, fused: bool = False, scalar: bool = True) -> Row:
    shapes: Sequence[Shape] = ((3, 4), (5,))
    feeds = {"s": np.array(0.25 if scalar else [0.25], np.float32), **_tensors(76, shapes)}
    scaled = [0.25 * feeds[f"x{i}"].astype(np.float64) for i in range(len(shapes))]
    if fused:
        scaled = [np.concatenate([x.ravel() for x in scaled])]
    expected: dict[str, Array] = {f"y{i}": x for i, x in enumerate(scaled)}
    if to == dtypes.FLOAT16:
        expected = {key: x.astype(np.float16) for key, x in expected.items()}
    inputs, outputs = " ".join(feeds), " ".join(expected)
    nodes = (node("MixedPrecisionScale", inputs, outputs, to=to, fuse_outputs=int(fused)),)
    return Row(name, nodes, feeds, expected, sized=("s",), reference=NO_KERNEL)


_SCALES = {"scale_0": 0.5, "scale_1": -2.0, "scale_2": 0.125}


def scaled_sum_row(name: str, count: int = 2) -> Row:
    feeds = _tensors(77, [(3, 4)] * count)
    scales = dict(list(_SCALES.items())[:count])
    total = sum(
        s * x.astype(np.float64) for s, x in zip(scales.values(), feeds.values(), strict=True)
    )
    nodes = (node("ScaledSum", " ".join(feeds), "y", **scales),)
    return Row(name, nodes, feeds, {"y": np.asarray(total)}, reference=NO_KERNEL)


def batch_scale_row(name: str, outputs: str = "y0 y1") -> Row:
    (x,) = normals(78, (3, 4))
    expected = {
        key: s * x.astype(np.float64)
        for key, s in zip(outputs.split(), _SCALES.values(), strict=False)
        if key != "_"
    }
    scales = dict(list(_SCALES.items())[: len(outputs.split())])
    nodes = (node("BatchScale", "x", outputs, **scales),)
    return Row(name, nodes, {"x": x}, expected, reference=NO_KERNEL)


def accumulator_row(name: str, signal: bool | None = None) -> Row:
    old, value = normals(79, (3, 4), (3, 4))
    feeds: dict[str, Array] = {"old": old, "value": value}
    if signal is not None:
        feeds["signal"] = np.array([signal])
    total = old.astype(np.float64) + (value if signal is not False else 0)
    nodes = (node("InPlaceAccumulator", " ".join(feeds), "y"),)
    return Row(name, nodes, feeds, {"y": total}, sized=("signal",))


def zero_row(name: str) -> Row:
    (old,) = normals(80, (3, 4))
    old[0, 0] = np.nan
    nodes = (node("ZeroGradient", "old signal", "y"),)
    feeds = {"old": old, "signal": np.array([True])}
    return Row(name, nodes, feeds, {"y": np.zeros((3, 4))}, sized=("signal",))


def fake_quant_row(name: str, low: int = 0, high: int = 255, zero: float = 3.0) -> Row:
    x = np.linspace(-40, 60, 81, dtype=np.float32).reshape(9, 9) / 16
    scale = np.array(0.03125 if high < 100 else 0.0078125, np.float32)
    q = np.round(x.astype(np.float64) / scale) + zero
    expected: dict[str, Array] = {
        "y": (np.clip(q, low, high) - zero) * scale,
        "mask": (q >= low) & (q <= high),
    }
    attrs = {} if (low, high) == (0, 255) else {"quant_min": low, "quant_max": high}
    nodes = (node("FakeQuant", "x scale zero", "y mask", **attrs),)
    feeds = {"x": x, "scale": scale, "zero": np.array(zero, np.float32)}
    return Row(name, nodes, feeds, expected)


def fake_quant_grad_row(name: str) -> Row:
    (dy,) = normals(81, (4, 5))
    mask = np.random.default_rng(81).random((4, 5)) > 0.4
    nodes = (node("FakeQuantGrad", "dy mask", "dx"),)
    feeds = {"dy": dy, "mask": mask}
    return Row(name, nodes, feeds, {"dx": np.where(mask, dy, 0).astype(np.float64)})


_ROWS: dict[str, Callable[[str], Row]] = {
    "ReduceAllL2": norm_row,
    "ReduceAllL2: one scalar": partial(norm_row, shapes=((),)),
    "IsFinite": finite_row,
    "IsAllFinite": all_finite_row,
    "IsAllFinite: inf": partial(all_finite_row, last=np.inf, expected=False),
    "IsAllFinite: NaN": partial(all_finite_row, last=np.nan, expected=False),
    "IsAllFinite: NaN, isinf_only": partial(all_finite_row, last=np.nan, isinf_only=1),
    "IsAllFinite: -inf, isnan_only": partial(all_finite_row, last=-np.inf, isnan_only=1),
    "All": all_row,
    "All: one false": partial(all_row, last=False),
    "All: scalar": partial(all_row, shape=()),
    "Group": group_row,
    "PassThrough": pass_row,
    "View": view_row,
    "View: fed": partial(view_row, fed=True),
    "MixedPrecisionScale": mixed_row,
    "MixedPrecisionScale: to float16": partial(mixed_row, to=dtypes.FLOAT16),
    "MixedPrecisionScale: fused": partial(mixed_row, fused=True),
    "MixedPrecisionScale: scale of one element": partial(mixed_row, scalar=False),
    "ScaledSum": scaled_sum_row,
    "ScaledSum: three": partial(scaled_sum_row, count=3),
    "BatchScale": batch_scale_row,
    "BatchScale: three": partial(batch_scale_row, outputs="y0 y1 y2"),
    "BatchScale: one unwanted": partial(batch_scale_row, outputs="_ y1"),
    "InPlaceAccumulator": accumulator_row,
    "InPlaceAccumulator: signal": partial(accumulator_row, signal=True),
    "InPlaceAccumulator: no update": partial(accumulator_row, signal=False),
    "ZeroGradient": zero_row,
    "FakeQuant": fake_quant_row,
    "FakeQuant: int4": partial(fake_quant_row, low=-8, high=7, zero=-1.0),
    "FakeQuantGrad": fake_quant_grad_row,
}

TABLE = {name: partial(build, name) for name, build in _ROWS.items()}
TABLE["All (ai.onnx)"] = partial(all_row, "All (ai.onnx)", domain="")
