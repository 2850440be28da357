"""The gradients of group and instance normalization against their formula in float64."""

from __future__ import annotations

import numpy as np
import pytest
from support.lowering import Array, normals
from support.native_kernels import needs_library, run_kernel

needs_library()

_EPSILON = 1e-3


def _feeds(shape: tuple[int, ...]) -> dict[str, Array]:
    dy, x, scale = normals(shape[-1], shape, shape, shape[1:2])
    return {"dy": dy, "x": x, "scale": scale}


def _run(feeds: dict[str, Array], groups: int) -> list[Array]:
    return run_kernel("GroupNormalizationGrad", feeds, 3, num_groups=groups, epsilon=_EPSILON)


def _expected(feeds: dict[str, Array], groups: int) -> list[Array]:
    dy, x, scale = (value.astype(np.float64) for value in feeds.values())
    n, c = x.shape[:2]
    rows = (n, groups or c, x.size // (n * (groups or c)))
    grouped = x.reshape(rows)
    centred = grouped - grouped.mean(2, keepdims=True)
    inv_std = 1 / np.sqrt((centred**2).mean(2, keepdims=True) + _EPSILON)
    xhat = centred * inv_std
    g = (dy * scale.reshape(-1, *(1,) * (x.ndim - 2))).reshape(rows)
    dx = inv_std * (g - g.mean(2, keepdims=True) - xhat * (g * xhat).mean(2, keepdims=True))
    axes = (0, *range(2, x.ndim))
    return [dx.reshape(x.shape), (dy * xhat.reshape(x.shape)).sum(axes), dy.sum(axes)]


@pytest.mark.parametrize("groups", [0, 1, 2, 6])
@pytest.mark.parametrize(
    "shape",
    [(2, 6, 5, 7), (1, 6, 1, 2), (3, 6, 33), (2, 6, 4, 4, 3), (1, 6, 64, 64), (2, 6, 257)],
)
def test_sizes(shape: tuple[int, ...], groups: int) -> None:
    feeds = _feeds(shape)
    for got, wanted in zip(_run(feeds, groups), _expected(feeds, groups), strict=True):
        scale = max(float(np.abs(wanted).max()), 1.0)
        np.testing.assert_allclose(got, wanted, rtol=0, atol=2e-6 * scale)


@pytest.mark.parametrize("groups", [0, 2])
def test_a_mean_far_from_zero(groups: int) -> None:
    """No more is lost than float32 numbers around 1000 have lost before."""
    feeds = _feeds((2, 4, 9, 11))
    feeds["x"] += 1000
    for got, wanted in zip(_run(feeds, groups), _expected(feeds, groups), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-4 * np.abs(wanted).max())


@pytest.mark.parametrize("odd", [np.inf, np.nan])
def test_a_group_that_is_not_finite_has_no_gradient(odd: float) -> None:
    feeds = _feeds((2, 6, 5, 3))
    feeds["x"][1, 2, 0, 1] = odd
    dx, dscale, dbias = _run(feeds, 3)
    assert np.isnan(dx[1, 2:4]).all()
    assert np.isnan(dscale[2:4]).all()
    dx[1, 2:4] = 0
    assert np.isfinite(dx).all()
    assert np.isfinite(dscale[[0, 1, 4, 5]]).all()
    np.testing.assert_allclose(dbias, feeds["dy"].sum((0, 2, 3)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(0, 6, 5, 3), (2, 6, 0, 3)], ids=["images", "positions"])
def test_nothing_to_normalize(shape: tuple[int, ...]) -> None:
    """Sums of nothing are zeros."""
    dx, dscale, dbias = _run(_feeds(shape), 2)
    assert dx.shape == shape
    assert not dscale.any()
    assert not dbias.any()


@pytest.mark.parametrize(
    ("name", "shape", "groups"),
    [("scale", (5,), 0), ("dy", (2, 6, 5, 4), 0), ("scale", (6,), 4), ("scale", (6,), 7)],
    ids=["another scale", "another dy", "groups that do not fit", "too many groups"],
)
def test_what_does_not_fit_is_an_error(name: str, shape: tuple[int, ...], groups: int) -> None:
    feeds = {**_feeds((2, 6, 5, 3)), name: np.zeros(shape, np.float32)}
    with pytest.raises(Exception, match="groups of one size"):
        _run(feeds, groups)
