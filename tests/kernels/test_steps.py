"""One table: every backend against reference.py, bit for bit, and reference.py against float64."""

from __future__ import annotations

import math

import numpy as np
import pytest

from edge_train.kernels import (
    AdamWScalars,
    Steps,
    adamw_scalars,
    lion_scalars,
    momentum_scalars,
    native,
    select,
)
from edge_train.kernels.blocks import BLOCK
from edge_train.kernels.contract import Floats

REFERENCE = select("reference")
SIZES = (0, 1, 1000, BLOCK + 5)
SETTINGS = {
    "artifact": {"betas": (float(np.float32(0.9)), float(np.float32(0.999))), "eps": 1e-6,
                 "weight_decay": 0.0},
    "decay": {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01},
    "short memory": {"betas": (0.3, 0.4), "eps": 1e-3, "weight_decay": 0.3},
    "no memory": {"betas": (0.0, 0.0), "eps": 1e-3, "weight_decay": 0.0},
}  # fmt: skip
ORDERS = {"mode 0": (0, True), "mode 1": (1, True), "mode 1, no correction": (1, False)}


# Numba compiles for seconds
@pytest.fixture(
    scope="module",
    params=["native", "numpy", pytest.param("numba", marks=pytest.mark.slow), "reference"],
)
def backend(request: pytest.FixtureRequest) -> Steps:
    if request.param == "numba":
        pytest.importorskip("numba", reason="Numba is not installed: its backend is not tested")
    if request.param == "native" and native.library_path() is None:
        pytest.skip("no native library: tools/build_kernels.py makes it")
    return select(request.param)


def _arrays(rng: np.random.Generator, size: int) -> list[Floats]:
    weights, gradients, moment0 = (rng.standard_normal(size).astype(np.float32) for _ in range(3))
    gradients *= np.float32(10) ** rng.integers(-6, 3, size).astype(np.float32)
    return [weights, gradients, moment0, np.square(rng.standard_normal(size)).astype(np.float32)]


def _in_double(arrays: list[Floats], s: AdamWScalars) -> list[np.ndarray]:
    p, g, m, v = (array.astype(np.float64) for array in arrays)
    mode, beta1, rest1, beta2, rest2, eps, rate, decay, c1, c2 = s.mode, *map(float, s.numbers)
    m, v = beta1 * m + rest1 * g, beta2 * v + rest2 * g * g
    if mode == 0:
        p = p - decay * p
        return [p - rate * m / (c1 * (np.sqrt(v / c2) + eps)), m, v]
    p = p - rate * m / (np.sqrt(v) + eps)
    return [p - decay * p, m, v]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
@pytest.mark.parametrize(("mode", "correct_bias"), ORDERS.values(), ids=ORDERS.keys())
def test_adamw(
    backend: Steps, mode: int, correct_bias: bool, settings: dict, size: int,
    rng: np.random.Generator,
) -> None:  # fmt: skip
    arrays = _arrays(rng, size)
    mine = [array.copy() for array in arrays]
    for step in (1, 1000):
        scalars = adamw_scalars(0.02, step=step, mode=mode, correct_bias=correct_bias, **settings)
        exact = _in_double(arrays, scalars)
        backend.adamw(*mine, scalars)
        REFERENCE.adamw(*arrays, scalars)
        for got, expected in zip(mine, arrays, strict=True):
            np.testing.assert_array_equal(got, expected)
        for got, expected in zip([mine[0], *mine[2:]], exact, strict=True):
            np.testing.assert_allclose(got, expected, rtol=4e-6, atol=2e-6)


def test_the_double_comparison_sees_a_wrong_formula(rng: np.random.Generator) -> None:
    arrays = _arrays(rng, 1000)
    exact = _in_double(arrays, adamw_scalars(0.02, (0.9, 0.999), 1e-6, 0.0, 1, mode=0))[0]
    REFERENCE.adamw(*arrays, adamw_scalars(0.02, (0.9, 0.999), 1e-6, 0.01, 1, mode=0))
    assert not np.allclose(arrays[0], exact, rtol=4e-6, atol=2e-6)


@pytest.mark.parametrize("size", SIZES)
def test_sgd_and_accumulate(backend: Steps, size: int, rng: np.random.Generator) -> None:
    weights, gradients, *_ = _arrays(rng, size)
    expected = weights - np.float32(0.1) * gradients
    backend.sgd(weights, gradients, 0.1)
    np.testing.assert_array_equal(weights, expected)
    backend.accumulate(weights, gradients)
    np.testing.assert_array_equal(weights, expected + gradients)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("decay", [0.0, 0.3])
@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum(
    backend: Steps, size: int, decay: float, nesterov: bool, rng: np.random.Generator
) -> None:
    p, g, m, _ = _arrays(rng, size)
    scalars = momentum_scalars(0.02, 0.9, decay, nesterov)
    theirs, mine = [p.copy(), m.copy()], [p, m]
    d = g + decay * p.astype(np.float64)
    after = 0.9 * m + d
    exact = p - 0.02 * (d + 0.9 * after if nesterov else after)
    REFERENCE.momentum(theirs[0], g, theirs[1], scalars)
    backend.momentum(p, g, m, scalars)
    for got, expected in zip(mine, theirs, strict=True):
        np.testing.assert_array_equal(got, expected)
    np.testing.assert_allclose(m, after, rtol=2e-6, atol=2e-6)
    np.testing.assert_allclose(p, exact, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_lion(backend: Steps, size: int, decay: float, rng: np.random.Generator) -> None:
    p, g, m, _ = _arrays(rng, size)
    m[::7] = g[::7] = 0  # no direction at all: no step
    theirs, mine = [p.copy(), m.copy()], [p, m]
    exact = p * (1 - 0.02 * decay) - 0.02 * np.sign(0.9 * m.astype(np.float64) + 0.1 * g)
    after = 0.99 * m.astype(np.float64) + 0.01 * g
    for arrays, steps in ((theirs, REFERENCE), (mine, backend)):
        steps.lion(arrays[0], g, arrays[1], lion_scalars(0.02, (0.9, 0.99), decay))
    for got, expected in zip(mine, theirs, strict=True):
        np.testing.assert_array_equal(got, expected)
    np.testing.assert_allclose(p, exact, rtol=2e-6, atol=2e-6)
    np.testing.assert_allclose(m, after, rtol=2e-6, atol=2e-6)


def test_lion_and_momentum_let_a_nan_through(backend: Steps) -> None:
    for run in (
        lambda a: backend.lion(*a, lion_scalars(0.1, (0.9, 0.99), 0.0)),
        lambda a: backend.momentum(*a, momentum_scalars(0.1, 0.9, 0.0, True)),
    ):
        arrays = [np.array(row, np.float32) for row in ([1, 2], [np.nan, 1], [1, 1])]
        run(arrays)
        assert [bool(np.isnan(arrays[0][i])) for i in range(2)] == [True, False]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("share", [0.01, 0.999, 1.001, 100.0])
def test_clip(backend: Steps, size: int, share: float, rng: np.random.Generator) -> None:
    gradients = rng.standard_normal(size).astype(np.float32)
    norm = math.sqrt(float(np.sum(gradients.astype(np.float64) ** 2)))
    max_norm = share * norm
    factor = np.float32(min(1.0, max_norm / (norm + 1e-6)))
    expected = gradients * factor
    assert backend.clip(gradients, max_norm) == pytest.approx(norm, rel=1e-12)
    np.testing.assert_allclose(gradients, expected, rtol=2e-7, atol=0)


def test_clip_takes_gradients_whose_squares_overflow(backend: Steps) -> None:
    gradients = np.full(1000, 1e30, np.float32)
    assert backend.clip(gradients, 1.0) == pytest.approx(1e30 * math.sqrt(1000), rel=1e-6)
    np.testing.assert_allclose(gradients, 1 / math.sqrt(1000), rtol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_clip_spreads_what_is_not_a_number(backend: Steps, bad: float) -> None:
    gradients = np.array([1, bad, 2], np.float32)
    backend.clip(gradients, 1.0)
    assert np.isnan(gradients).any()


@pytest.mark.parametrize("size", SIZES)
def test_large_numbers_are_finite(backend: Steps, size: int) -> None:
    largest = np.finfo(np.float32).max
    array = np.full(size, largest, np.float32)
    assert backend.all_finite(array)
    array[::2] = -largest
    assert backend.all_finite(array)
    assert backend.all_finite(np.full(size, 1e-45, np.float32))


@pytest.mark.parametrize("size", SIZES[1:])
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
def test_one_bad_number_anywhere_is_found(backend: Steps, size: int, bad: float) -> None:
    for value in (1.0, 3e38):
        for place in (0, size // 2, size - 1):
            array = np.full(size, value, np.float32)
            array[place] = bad
            assert not backend.all_finite(array)
    assert not backend.all_finite(np.full(size, bad, np.float32))


def test_flush(backend: Steps) -> None:
    tiny = 2.0**-100
    below, at = np.float32(tiny / 2), np.float32(tiny)
    array = np.array([0.0, below, -below, at, -at, 1e-42, 3.0, np.inf, np.nan], np.float32)
    backend.flush(array, tiny)
    expected = np.array([0.0, 0.0, 0.0, at, -at, 0.0, 3.0, np.inf, np.nan], np.float32)
    np.testing.assert_array_equal(array, expected)
