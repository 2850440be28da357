"""Kernels of image models: bits for any threads, numbers that are none, sizes that do not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.lowering import Array, normals, stock
from support.native_kernels import needs_library, run_kernel

needs_library()

_PADS: dict[str, Any] = {"pads": [1] * 4}


def _conv(n: int, c: int, o: int, size: int, kernel: int, channels: int) -> dict[str, Array]:
    dy, x, w = normals(c, (n, o, size, size), (n, c, size, size), (o, channels, kernel, kernel))
    return {"dy": dy, "x": x, "w": w}


def _statistics(shape: tuple[int, ...]) -> dict[str, Array]:
    x, dy, scale, bias = normals(3, shape, shape, shape[1:2], shape[1:2])
    zeros, ones = np.zeros_like(scale), np.ones_like(scale)
    return {"x": x, "scale": scale, "bias": bias, "mean": zeros, "var": ones, "dy": dy}


def _of(feeds: dict[str, Array], names: str) -> dict[str, Array]:
    return {name: feeds[name] for name in names.split()}


_POINTWISE, _DEPTHWISE = _conv(5, 37, 40, 17, 1, 37), _conv(5, 29, 29, 18, 3, 1)
_FEW, _GENERAL = _conv(2, 40, 37, 5, 3, 40), _conv(5, 12, 24, 19, 3, 6)
_NORM = _statistics((4, 33, 11, 13))
#: kernel, its inputs, how many outputs it makes, its attributes
CASES: dict[str, tuple[str, dict[str, Array], int, dict[str, Any]]] = {
    "pointwise": ("PointwiseConv", _of(_POINTWISE, "x w"), 1, {}),
    "pointwise back": ("PointwiseConvGrad", _POINTWISE, 3, {}),
    "depthwise": ("DepthwiseConv", _of(_DEPTHWISE, "x w"), 1, _PADS),
    "depthwise back": ("DepthwiseConvGrad", _DEPTHWISE, 3, _PADS),
    "general back": ("ConvGrad", _GENERAL, 3, {**_PADS, "group": 2}),
    "general back, few positions": ("ConvGrad", _FEW, 3, _PADS),
    "norm": ("BatchNorm", _of(_NORM, "x scale bias mean var"), 5, {}),
    "group norm back": (
        "GroupNormalizationGrad",
        _of(_NORM, "dy x scale"),
        3,
        {"num_groups": 3, "epsilon": 1e-3},
    ),
    "average pool back": (
        "AveragePoolGrad",
        {"dy": _NORM["dy"], "shape": np.array([4, 33, 22, 25], np.int64)},
        1,
        {**_PADS, "kernel_shape": [3, 3], "strides": [2, 2]},
    ),
    "norm back": ("BatchNormGrad", _of(_NORM, "dy x scale mean var"), 3, {}),
}


@pytest.mark.parametrize("name", CASES)
def test_same_bits_with_any_number_of_threads(name: str) -> None:
    op, feeds, outputs, attrs = CASES[name]
    one, four = (run_kernel(op, feeds, outputs, threads, **attrs) for threads in (1, 4))
    for a, b in zip(one, four, strict=True):
        assert np.isfinite(a).all()
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", ["pointwise", "depthwise"])
@pytest.mark.parametrize("off", [-1, 1])
def test_a_bias_of_another_length_is_an_error(name: str, off: int) -> None:
    op, feeds, outputs, attrs = CASES[name]
    bias = np.zeros(feeds["w"].shape[0] + off, np.float32)
    with pytest.raises(Exception, match="a number for each channel of its output"):
        run_kernel(op, {**feeds, "bias": bias}, outputs, **attrs)


@pytest.mark.parametrize("odd", [np.inf, np.nan])
def test_a_channel_that_is_not_finite_has_no_variance(odd: float) -> None:
    """As the separate nodes say: the whole channel is NaN, and no other one."""
    feeds = _of(_statistics((2, 3, 4, 5)), "x scale bias mean var")
    feeds["x"][1, 2, 0, 3] = odd
    y, _, var, _, inv_std = run_kernel("BatchNorm", feeds, 5)
    assert np.isnan(y[:, 2]).all()
    assert np.isnan(var[2])
    assert np.isnan(inv_std[2])
    assert np.isfinite(y[:, :2]).all()


@pytest.mark.parametrize("op", ["PointwiseConvGrad", "ConvGrad"])
def test_a_convolution_without_output_channels(op: str) -> None:
    """Nothing arrives: the gradient of x is 0, that of the weights empty."""
    kernel = 1 if op == "PointwiseConvGrad" else 3
    feeds = _conv(2, 3, 0, 5, kernel, 3)
    attrs = {} if kernel == 1 else _PADS
    (dx,) = run_kernel(op, feeds, 1, **attrs)
    np.testing.assert_array_equal(dx, np.zeros_like(feeds["x"]))


#: strides, dilations, pads, sizes of x: something of x lies behind, between or before all windows
UNREAD: dict[str, tuple[list[int], list[int], list[int], tuple[int, int]]] = {
    "the last row and column": ([2, 2], [1, 1], [0] * 4, (8, 32)),
    "and more of them": ([3, 5], [1, 1], [1, 0, 0, 1], (12, 34)),
    "strides beyond the kernel": ([5, 4], [1, 1], [0] * 4, (23, 39)),
    "between dilated taps": ([3, 2], [4, 3], [0] * 4, (30, 31)),
    "between few windows": ([1, 1], [6, 5], [0] * 4, (15, 13)),
    "dilation and stride": ([2, 2], [2, 4], [1] * 4, (20, 23)),
    "one column of windows": ([1, 2], [1, 3], [0] * 4, (40, 8)),
    "windows in the padding alone": ([1, 20], [1, 1], [0, 3, 0, 0], (9, 20)),
}


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("name", UNREAD)
def test_what_no_window_reads_may_hold_nan(name: str, group: int) -> None:
    strides, dilations, pads, sizes = UNREAD[name]
    attrs = {"strides": strides, "dilations": dilations, "pads": pads, "group": group}
    x, w = normals(5, (3, 2, *sizes), (2, 2 // group, 3, 3))
    (y,) = stock("Conv", {"x": x, "w": w}, **attrs)()
    op, (dy,) = "DepthwiseConvGrad" if group == 2 else "ConvGrad", normals(6, y.shape)
    wanted = run_kernel(op, {"dy": dy, "x": x, "w": w}, 3, **attrs)
    x[:, :, ~_read(name, 0)] = np.nan
    x[..., ~_read(name, 1)] = np.nan
    assert np.isnan(x).any()
    again = run_kernel(op, {"dy": dy, "x": x, "w": w}, 3, **attrs)
    for value, got in zip(wanted, again, strict=True):
        np.testing.assert_array_equal(got, value)


def _read(name: str, axis: int) -> Array:
    """Whether a window of three taps reads each row (or column) of x."""
    strides, dilations, pads, sizes = UNREAD[name]
    stride, dilation, before, behind = strides[axis], dilations[axis], pads[axis], pads[axis + 2]
    starts = np.arange(0, sizes[axis] + before + behind - 2 * dilation, stride) - before
    taps = starts[:, None] + dilation * np.arange(3)
    return np.isin(np.arange(sizes[axis]), taps)


def test_an_axis_that_the_data_has_not_is_an_error() -> None:
    shape, indices = np.array([4, 3], np.int64), np.array([0, 1])
    feeds = {"shape": shape, "indices": indices, "dy": np.ones((2, 3), np.float32)}
    with pytest.raises(Exception, match="the gathered axis is none of the data's"):
        run_kernel("GatherGrad", feeds, axis=2)
