"""Kernels of transformers and MLPs: accuracy everywhere, odd sizes, bits for any threads."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from support.lowering import Array, normals, slopes
from support.native_kernels import needs_library, run_kernel

needs_library()

_ERF = np.vectorize(math.erf, otypes=[float])
_ERFC = np.vectorize(math.erfc, otypes=[float])


def _points() -> Array:
    """Dense around 0, out to where everything has saturated; no multiple of a vector's length."""
    wide = np.linspace(-30, 30, 20011)
    return np.concatenate([wide, np.linspace(-1e-3, 1e-3, 97), [0.0, -0.0]]).astype(np.float32)


def _cdf(x: Array) -> Array:
    return 0.5 * _ERFC(-x / math.sqrt(2))


def _bell(x: Array) -> Array:
    return np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


def _sigmoid(x: Array) -> Array:
    return np.where(
        x > 0, 1 / (1 + np.exp(-np.abs(x))), np.exp(-np.abs(x)) / (1 + np.exp(-np.abs(x)))
    )


def _tanh_slope(x: Array) -> Array:
    k, c = math.sqrt(2 / math.pi), 0.044715
    s = _sigmoid(2 * k * (x + c * x**3))
    return s + x * s * (1 - s) * 2 * k * (1 + 3 * c * x * x)


FORWARD: dict[str, Callable[[Array], Array]] = {
    "Gelu": lambda x: x * _cdf(x),
    "FastGelu": lambda x: x * _sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)),
    "QuickGelu": lambda x: x * _sigmoid(x),
}
BACKWARD: dict[str, Callable[[Array], Array]] = {
    "GeluGrad": lambda x: _cdf(x) + x * _bell(x),
    "FastGeluGrad": _tanh_slope,
    "QuickGeluGrad": lambda x: _sigmoid(x) * (1 + x * (1 - _sigmoid(x))),
    "HardSwishGrad": lambda x: np.clip(x / 6 + 0.5, 0, 1) + np.where(np.abs(x) < 3, x / 6, 0),
}


@pytest.mark.parametrize("op", FORWARD)
def test_gelu_is_accurate_everywhere(op: str) -> None:
    x = _points()
    (y,) = run_kernel(op, {"x": x})
    wanted = FORWARD[op](x.astype(np.float64))
    # a few ulp, of a 10,000th of x where the tail dies off below that
    scale = np.maximum(np.abs(wanted), 1e-4 * np.abs(x)) + 1e-37
    assert np.max(np.abs(y - wanted) / scale) <= 1e-6


@pytest.mark.parametrize("op", BACKWARD)
def test_slopes_are_accurate_everywhere(op: str) -> None:
    x = _points()
    (dx,) = run_kernel(op, {"dy": np.ones_like(x), "x": x})
    assert np.max(np.abs(dx - BACKWARD[op](x.astype(np.float64)))) <= 4e-7


@pytest.mark.parametrize("op", [*FORWARD, *BACKWARD])
def test_infinities_and_nan(op: str) -> None:
    x = np.array([np.inf, -np.inf, np.nan, 3.0e38, -3.0e38], np.float32)
    feeds = {"x": x} if op in FORWARD else {"dy": np.ones_like(x), "x": x}
    (y,) = run_kernel(op, feeds)
    high = np.inf if op in FORWARD else 1.0
    assert y[0] == high
    assert np.isnan(y[2])
    assert y[4] == 0 if op in FORWARD else abs(y[4]) < 1e-30
    assert op in FORWARD or (abs(y[1]) < 1e-30 and y[3] == 1)


def _feeds(rows: int, width: int) -> dict[str, dict[str, Array]]:
    dy, x, y, residual = normals(7, *[(rows, width)] * 4)
    scale, bias, mean, inv = normals(8, (width,), (width,), (rows, 1), (rows, 1))
    labels = np.random.default_rng(9).integers(0, width, rows)
    return {
        "GeluGrad": {"dy": dy, "x": x, "bias": bias},
        "HardSwishGrad": {"dy": dy, "x": x},
        "SoftmaxGrad": {"dy": dy, "y": y},
        "LogSoftmaxGrad": {"dy": dy, "y": y},
        "LayerNormalizationGrad": {"dy": dy, "x": x, "scale": scale, "mean": mean, "inv": inv,
                                   "more": residual},
        "SimplifiedLayerNormalizationGrad": {"dy": dy, "x": x, "scale": scale, "inv": inv},
        "AddedLayerNormalization": {"a": x, "bias": bias, "residual": residual, "scale": scale,
                                    "shift": bias},
        "CrossEntropyWithGrad": {"dy": np.ones((), np.float32), "x": x, "labels": labels},
        "CrossEntropy": {"x": x, "labels": labels},
        "GatherGrad": {"shape": np.array([width, width], np.int64), "indices": labels, "dy": dy},
        "HeadsGrad": {"dy": np.stack([dy, x]).reshape(2, 1, rows, width)},
    }  # fmt: skip


_OUTPUTS = {
    "GeluGrad": 2, "HardSwishGrad": 2, "LayerNormalizationGrad": 4,
    "SimplifiedLayerNormalizationGrad": 2,
    "AddedLayerNormalization": 4, "CrossEntropyWithGrad": 2, "CrossEntropy": 2, "HeadsGrad": 2,
}  # fmt: skip


@pytest.mark.parametrize("op", _feeds(1, 1))
def test_same_bits_with_any_number_of_threads(op: str) -> None:
    feeds = _feeds(701, 101)[op]
    one, four = (run_kernel(op, feeds, _OUTPUTS.get(op, 1), threads) for threads in (1, 4))
    for a, b in zip(one, four, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("width", [1, 3, 16, 33])
@pytest.mark.parametrize("rows", [0, 1, 5])
def test_sums_over_rows(rows: int, width: int) -> None:
    """The last output of the kernels that make one, however few rows there are."""
    for op, index in (("GeluGrad", 1), ("HardSwishGrad", 1), ("LayerNormalizationGrad", 3)):
        made = run_kernel(op, _feeds(rows, width)[op], _OUTPUTS[op])
        wanted = made[0].astype(np.float64).sum(0)
        np.testing.assert_allclose(made[index], wanted, atol=1e-4, rtol=1e-5)


def test_a_label_outside_the_classes_is_an_error() -> None:
    feeds = _feeds(4, 5)["CrossEntropy"]
    feeds["labels"] = np.array([0, 1, 5, 2])
    with pytest.raises(Exception, match="outside"):
        run_kernel("CrossEntropy", feeds, 2)


def test_an_index_outside_the_axis_is_an_error() -> None:
    feeds = _feeds(4, 5)["GatherGrad"]
    feeds["indices"] = np.array([0, 1, -6, 2])
    with pytest.raises(Exception, match="outside"):
        run_kernel("GatherGrad", feeds)


def test_repeated_indices_add_up_in_order() -> None:
    dy = np.array([[1e8], [1.0], [-1e8]], np.float32)
    feeds = {"shape": np.array([2, 1], np.int64), "indices": np.array([1, 1, 1]), "dy": dy}
    (dx,) = run_kernel("GatherGrad", feeds)
    assert dx.tolist() == [[0.0], [0.0]]  # 1e8 + 1 is 1e8 in float32, less 1e8
    (dx,) = run_kernel("GatherGrad", {**feeds, "dy": dy[[0, 2, 1]]})
    assert dx.tolist() == [[0.0], [1.0]]


def test_logits_of_any_size_do_not_overflow() -> None:
    x = np.array([[1e4, -1e4, 0.0], [-3e38, 3e38, 0.0]], np.float32)
    loss, dx = run_kernel(
        "CrossEntropyWithGrad",
        {"dy": np.ones((), np.float32), "x": x, "labels": np.array([0, 1])},
        2,
    )
    assert loss == 0
    np.testing.assert_array_equal(dx, np.zeros_like(x))


def test_the_gradient_in_one_pass_is_the_losses_slope() -> None:
    (x,) = normals(3, (3, 4, 2))
    labels = np.array([[0, 3], [1, -1], [2, 2]])
    weight = np.array([0.5, 1.0, 2.0, 0.25], np.float32)
    attrs = {"reduction": 2, "has_ignored": 1, "ignored": -1}
    dy = np.ones((), np.float32)

    def loss(x: Array) -> Array:
        shifted = x.astype(np.float64)
        log_prob = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
        w = np.where(labels < 0, 0, weight[labels])
        picked = np.take_along_axis(log_prob, np.maximum(labels, 0)[:, None], 1)[:, 0]
        return np.asarray(-(picked * w).sum() / w.sum())

    feeds = {"dy": dy, "x": x, "labels": labels, "weight": weight}
    got, dx = run_kernel("CrossEntropyWithGrad", feeds, 2, **attrs)
    np.testing.assert_allclose(got, loss(x), rtol=1e-6)
    wanted = slopes(loss, x.astype(np.float64), dy, 1e-5)
    np.testing.assert_allclose(dx, wanted, atol=2e-7)
