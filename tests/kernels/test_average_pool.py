"""The gradient of AveragePool against a walk over every window."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from support.lowering import Array, normals
from support.native_kernels import needs_library, run_kernel

needs_library()

_SIZE = (2, 3, 13, 22)
#: kernel, strides, pads, dilations
_WINDOWS: dict[str, tuple[list[int], list[int], list[int], list[int]]] = {
    "tiles": ([2, 2], [2, 2], [0] * 4, [1, 1]),
    "overlapping": ([3, 3], [2, 2], [1] * 4, [1, 1]),
    "every place": ([3, 5], [1, 1], [1, 2, 1, 2], [1, 1]),
    "gaps": ([2, 1], [3, 4], [0] * 4, [1, 1]),
    "unequal pads": ([3, 4], [2, 3], [2, 0, 1, 3], [1, 1]),
    "dilated": ([3, 2], [2, 1], [2, 1, 0, 4], [2, 3]),
    "one window": ([13, 22], [1, 1], [0] * 4, [1, 1]),
}


def _places(start: int, kernel: int, dilation: int, size: int) -> list[int]:
    taps = (start + k * dilation for k in range(kernel))
    return [place for place in taps if 0 <= place < size]


def _count(size: int, kernel: int, stride: int, pads: int, dilation: int) -> int:
    return (size + pads - dilation * (kernel - 1) - 1) // stride + 1


def _case(name: str, padded: int) -> tuple[dict[str, Array], dict[str, Any], Array]:
    """Feeds, attributes and the expected gradient."""
    kernel, strides, pads, dilations = _WINDOWS[name]
    n, c, *sizes = _SIZE
    out = [
        _count(size, kernel[i], strides[i], pads[i] + pads[i + 2], dilations[i])
        for i, size in enumerate(sizes)
    ]
    (dy,) = normals(len(name), (n, c, *out))
    dx = np.zeros(_SIZE)
    for r, s in itertools.product(*map(range, out)):
        rows, columns = (
            _places(at * strides[i] - pads[i], kernel[i], dilations[i], sizes[i])
            for i, at in enumerate((r, s))
        )
        share = kernel[0] * kernel[1] if padded else max(len(rows) * len(columns), 1)
        dx[:, :, np.array(rows, int)[:, None], columns] += dy[:, :, r, s][:, :, None, None] / share
    attrs = {"kernel_shape": kernel, "strides": strides, "pads": pads, "dilations": dilations}
    feeds = {"dy": dy, "shape": np.array(_SIZE, np.int64)}
    return feeds, {**attrs, "count_include_pad": padded}, dx


@pytest.mark.parametrize("padded", [0, 1])
@pytest.mark.parametrize("name", _WINDOWS)
def test_windows(name: str, padded: int) -> None:
    feeds, attrs, wanted = _case(name, padded)
    (dx,) = run_kernel("AveragePoolGrad", feeds, **attrs)
    np.testing.assert_allclose(dx, wanted, rtol=0, atol=1e-6)


def test_what_arrives_that_is_not_a_number_goes_where_it_came_from() -> None:
    feeds, attrs, wanted = _case("tiles", 0)
    feeds["dy"][1, 2, 3, 4] = np.nan
    (dx,) = run_kernel("AveragePoolGrad", feeds, **attrs)
    assert np.isnan(dx[1, 2, 6:8, 8:10]).all()
    dx[1, 2, 6:8, 8:10] = wanted[1, 2, 6:8, 8:10]
    np.testing.assert_allclose(dx, wanted, rtol=0, atol=1e-6)


def test_no_images() -> None:
    feeds, attrs, _ = _case("tiles", 0)
    feeds = {"dy": feeds["dy"][:0], "shape": np.array([0, *_SIZE[1:]], np.int64)}
    (dx,) = run_kernel("AveragePoolGrad", feeds, **attrs)
    assert dx.shape == (0, *_SIZE[1:])


def test_a_window_that_reaches_beyond_32_bits_does_not_fit() -> None:
    """2^32 + 1 columns, which 32 bits would take for one."""
    (dy,) = normals(3, (1, 1, 1, 5))
    feeds = {"dy": dy, "shape": np.array([1, 1, 1, 5], np.int64)}
    attrs = {"kernel_shape": [1, 2**16 + 1], "dilations": [1, 2**16]}
    with pytest.raises(Exception, match="larger than the padded image"):
        run_kernel("AveragePoolGrad", feeds, **attrs)


@pytest.mark.parametrize(
    ("shape", "text"),
    [((2, 3, 14, 25), "another shape"), ((2, 3, 1, 1), "larger than the padded image")],
)
def test_another_input_is_an_error(shape: tuple[int, ...], text: str) -> None:
    feeds, attrs, _ = _case("overlapping", 0)
    feeds["shape"] = np.array(shape, np.int64)
    attrs |= {"pads": [0] * 4}
    with pytest.raises(Exception, match=text):
        run_kernel("AveragePoolGrad", feeds, **attrs)
