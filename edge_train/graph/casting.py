"""What Cast makes of values that are known, where every kernel agrees on it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edge_train import dtypes
from edge_train.graph import ir

#: floats from the widest range to the narrowest, with every whole number up to the power of two
_EXACT = {dtypes.DOUBLE: 53, dtypes.FLOAT: 24, dtypes.FLOAT16: 11}
#: types that hold the size of any axis
_SIZES = (dtypes.INT32, dtypes.INT64, dtypes.DOUBLE)


def converted(values: np.ndarray, to: int | None) -> np.ndarray | None:
    """Values in the element type ``to``; None where the type has no array or a value does not fit
    it: ONNX leaves that open.
    """
    target = dtypes.NUMPY.get(to or 0)
    if target is None or {values.dtype.kind, target.kind} - set("biuf"):
        return None
    if target.kind == "b":
        return None if np.isnan(values).any() else values != 0
    if target.kind == "f":
        with np.errstate(over="ignore"):
            result = values.astype(target)
        # a half is rounded once here, twice by kernels that go through float32
        twice = to == dtypes.FLOAT16 and values.dtype not in (np.float16, np.float32)
        same = values.astype(np.float64) == result if twice else np.isfinite(result)
        return result if (same | ~np.isfinite(values)).all() else None
    return values.astype(target) if _fits(values, np.iinfo(target)) else None


def _fits(values: np.ndarray, limits: np.iinfo) -> bool:
    """Whether whole parts lie within the limits. Python's numbers: NumPy would round these."""
    if not np.isfinite(values).all():
        return False
    return all(limits.min <= int(value) <= limits.max for value in values.ravel().tolist())


def converted_sizes(values: Sequence[ir.Dim], to: int | None) -> tuple[ir.Dim, ...]:
    """Whole numbers, symbols among them, in the element type ``to``; None where not known."""
    return tuple([_converted_size(value, to) for value in values])


def _converted_size(value: ir.Dim, to: int | None) -> ir.Dim:
    if not isinstance(value, int):
        return value if to in _SIZES else None
    if to in _EXACT:
        return value if abs(value) <= 1 << _EXACT[to] else None
    result = converted(np.array(value), to)
    return None if result is None else int(result)
