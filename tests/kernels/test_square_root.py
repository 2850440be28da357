"""Square roots: the nearest float32, on machines where NumPy's own are not."""

from __future__ import annotations

import numpy as np
import pytest

from edge_train.kernels import square_root


@pytest.mark.parametrize("root", [square_root.sqrt, square_root.wide_sqrt])
def test_every_root_is_the_nearest_float32(root, rng: np.random.Generator) -> None:
    x = np.exp(rng.uniform(-80, 80, 100_003)).astype(np.float32)
    x[:3] = 0.0, np.inf, 1e-40
    exact = np.sqrt(x.astype(np.float64)).astype(np.float32)
    np.testing.assert_array_equal(root(x), exact)
    assert root(x).dtype == np.float32
    assert root(x, out=x) is x
    np.testing.assert_array_equal(x, exact)


def test_a_root_that_is_a_bit_off_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert square_root.sqrt is (
        square_root.narrow_sqrt if square_root.is_rounded() else square_root.wide_sqrt
    )
    exact = np.sqrt

    def estimate(x: np.ndarray) -> np.ndarray:
        return np.nextafter(exact(x), np.float32(9)) if x.dtype == np.float32 else exact(x)

    monkeypatch.setattr(square_root.np, "sqrt", estimate)
    assert not square_root.is_rounded()
