"""Moments of 8 bits: one table of backends, exact reloading, unbiased rounding, odd blocks."""

from __future__ import annotations

import numpy as np
import pytest

from edge_train.kernels import Packed, Steps, adamw8_scalars, adamw_scalars, native, select
from edge_train.kernels.packed import BLOCK, block_bounds

SIZES = (1000, 3, BLOCK, 0, 2 * BLOCK + 1, 1, 20000)
WHOLE = slice(0, sum(SIZES))
ARRAYS = ("ratio", "root", "ratio_max", "root_max")


# Numba compiles for seconds
@pytest.fixture(
    scope="module", params=["native", "numpy", pytest.param("numba", marks=pytest.mark.slow)]
)
def backend(request: pytest.FixtureRequest) -> Steps:
    if request.param == "numba":
        pytest.importorskip("numba", reason="Numba is not installed: its backend is not tested")
    if request.param == "native" and native.library_path() is None:
        pytest.skip("no native library: tools/build_kernels.py makes it")
    return select(request.param)


def _gradients(step: int, size: int = WHOLE.stop) -> np.ndarray:
    rng = np.random.default_rng(step)
    g = rng.standard_normal(size).astype(np.float32)
    g *= np.float32(10) ** rng.integers(-4, 2, size).astype(np.float32)
    g[100:300] = 0  # never touched
    return g


def _trained(steps: Steps, count: int = 12, parts: tuple[slice, ...] = (WHOLE,)) -> tuple:
    weights = np.linspace(-1, 1, WHOLE.stop).astype(np.float32)
    moments = Packed(block_bounds(SIZES))
    for step in range(1, count + 1):
        g = _gradients(step)
        scalars = adamw_scalars(1e-2, (0.9, 0.999), 1e-8, 0.01, step, mode=step % 2)
        for at in parts:
            steps.adamw8(weights[at], g[at], moments, at, adamw8_scalars(scalars, step))
    return weights, moments


def test_blocks_begin_anew_at_every_parameter() -> None:
    bounds = block_bounds(SIZES)
    ends = np.cumsum(SIZES)
    assert set(ends) <= set(bounds)
    assert np.diff(bounds).min() > 0
    assert np.diff(bounds).max() == BLOCK
    assert (bounds[0], bounds[-1]) == (0, WHOLE.stop)
    assert list(block_bounds([])) == list(block_bounds([0, 0])) == [0]


def test_every_backend_gives_the_same_bits(backend: Steps) -> None:
    weights, moments = _trained(backend)
    expected, theirs = _trained(select("reference"))
    np.testing.assert_array_equal(weights, expected)
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(moments, name), getattr(theirs, name))


def test_parts_of_whole_blocks_give_the_same_bits(backend: Steps) -> None:
    parts = Packed(block_bounds(SIZES)).parts(700)
    assert [part.start for part in parts[1:]] == [part.stop for part in parts[:-1]]
    assert max(part.stop - part.start for part in parts) <= 700
    weights, moments = _trained(backend, parts=parts)
    expected, theirs = _trained(backend)
    np.testing.assert_array_equal(weights, expected)
    np.testing.assert_array_equal(moments.root, theirs.root)


@pytest.mark.parametrize("count", [0, 1, 12])
def test_encode_finds_what_decode_gave(count: int) -> None:
    _, moments = _trained(select("numpy"), count)
    again = Packed(block_bounds(SIZES))
    for at in moments.parts(300):
        again.encode(at, *moments.decode(at))
    m, v = moments.decode(WHOLE)
    np.testing.assert_array_equal(again.decode(WHOLE), [m, v])
    if count:
        for name in ARRAYS:
            np.testing.assert_array_equal(getattr(again, name), getattr(moments, name))
        assert np.count_nonzero(m) > 0.8 * m.size


def test_rounding_is_within_a_code_of_the_block() -> None:
    """A code of the ratio is 1/127 of the largest one, of the root 1/16 of itself."""
    rng = np.random.default_rng(3)
    v = np.square(rng.lognormal(0, 1.2, 4 * BLOCK)).astype(np.float32)
    m = (rng.uniform(-3, 3, v.size) * np.sqrt(v)).astype(np.float32)
    moments = Packed(block_bounds([v.size]))
    moments.encode(slice(0, v.size), m, v)
    got_m, got_v = moments.decode(slice(0, v.size))
    s, got_s = np.sqrt(v), np.sqrt(got_v)
    assert np.max(np.abs(got_s / s - 1)) <= 1 / 32 + 1e-6
    assert np.max(np.abs(got_m / got_s - m / s)) <= 1.001 * 3 / 254
    assert np.max(np.abs(got_s / s - 1)) > 1 / 64  # the bounds are no wider than they need be


def test_small_changes_add_up() -> None:
    """v moves by 0.1 % a step, a code is 6 % or more: rounded to nearest it would stand still."""
    n, steps = 8 * BLOCK, 700
    weights, g = np.zeros(n, np.float32), np.zeros(n, np.float32)
    moments, kernels = Packed(block_bounds([n])), select("numpy")
    rng = np.random.default_rng(0)
    start = np.square(rng.lognormal(0, 1, n)).astype(np.float32)
    moments.encode(slice(0, n), np.zeros(n, np.float32), start)
    start = moments.decode(slice(0, n))[1]
    for step in range(1, steps + 1):
        scalars = adamw_scalars(1e-3, (0.9, 0.999), 1e-8, 0.0, step)
        kernels.adamw8(weights, g, moments, slice(0, n), adamw8_scalars(scalars, step))
    shrunk = moments.decode(slice(0, n))[1] / start / 0.999**steps
    assert float(np.mean(shrunk)) == pytest.approx(1, abs=0.01)
    assert float(np.std(shrunk)) < 0.1


def test_tiny_blocks_count_as_zero_and_come_to_life_again(backend: Steps) -> None:
    n = BLOCK + 7
    weights, moments = np.ones(n, np.float32), Packed(block_bounds([n]))
    for step, size in enumerate((0.0, 1e-30, 1e-16, 1.0), 1):
        g = np.full(n, size, np.float32)
        scalars = adamw8_scalars(adamw_scalars(0.5, (0.9, 0.999), 1e-8, 0.0, step), step)
        backend.adamw8(weights, g, moments, slice(0, n), scalars)
        assert np.isfinite(weights).all()
        assert moments.decode(slice(0, n))[1].any() == (size == 1.0)
    assert np.all(weights < 0.75)


def test_a_nan_stays_within_its_block(backend: Steps) -> None:
    n = 3 * BLOCK
    weights, moments = np.ones(n, np.float32), Packed(block_bounds([n]))
    g = np.ones(n, np.float32)
    g[BLOCK + 5] = np.nan
    scalars = adamw8_scalars(adamw_scalars(0.5, (0.9, 0.999), 1e-8, 0.0, 1), 1)
    with np.errstate(all="ignore"):
        backend.adamw8(weights, g, moments, slice(0, n), scalars)
    assert np.isnan(weights).sum() == 1
    for part in (slice(0, BLOCK), slice(2 * BLOCK, n)):
        assert np.isfinite(moments.decode(part)).all()


def test_memory_of_large_parameters() -> None:
    moments = Packed(block_bounds([10**6]))
    assert moments.nbytes < 2.1 * 10**6
