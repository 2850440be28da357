"""Whole numbers that a caller gives: as Python's own, which do not wrap around."""

from __future__ import annotations

import operator
from typing import SupportsIndex

import numpy as np


def whole_number(name: str, value: SupportsIndex) -> int:
    """``value``, of Python or NumPy, as an int; TypeError for anything else, bools among it."""
    try:
        if not isinstance(value, (bool, np.bool_)):
            return operator.index(value)
    except TypeError:
        pass
    raise TypeError(f"{name} must be an integer, got {value!r} of type {type(value).__name__}")


def check_count(name: str, value: SupportsIndex, least: int) -> int:
    """``value`` as an int >= ``least``; TypeError, ValueError otherwise."""
    count = whole_number(name, value)
    if count < least:
        raise ValueError(f"{name} must be >= {least}, got {count}")
    return count
