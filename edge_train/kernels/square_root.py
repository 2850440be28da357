"""Square roots rounded as IEEE 754 asks, which NumPy's are not on 32-bit ARM.

NEON has an estimate there and no root: a third of NumPy's float32 roots are one bit off, and other
bits than those of compiled kernels, which use the scalar instruction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from edge_train.kernels.packed import Floats


def wide_sqrt(x: Floats, out: Floats | None = None) -> Floats:
    """Square roots of float32 by way of double: the same as rounded once."""
    roots: Floats = np.sqrt(x, out=out if out is not None else np.empty_like(x), dtype=np.float64,
                            casting="same_kind")  # fmt: skip
    return roots


def narrow_sqrt(x: Floats, out: Floats | None = None) -> Floats:
    """Square roots of float32 by NumPy's own loop."""
    roots: Floats = np.sqrt(x, out=out)
    return roots


def is_rounded() -> bool:
    """Whether NumPy's float32 roots are the nearest float32 here."""
    probe = np.linspace(1.0, 4.0, 1001, dtype=np.float32)
    return np.array_equal(np.sqrt(probe), np.sqrt(probe.astype(np.float64)).astype(np.float32))


sqrt = narrow_sqrt if is_rounded() else wide_sqrt
