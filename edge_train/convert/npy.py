"""The head of a .npy file, which NumPy reads as a literal of Python: whatever that may raise."""

from __future__ import annotations

from tokenize import TokenError
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

_READERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def read_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, Fortran order and type of the array behind it; ValueError for any damage."""
    version = npy.read_magic(file)
    if version not in _READERS:
        raise ValueError(f".npy version {version}, expected (1, 0) or (2, 0)")
    try:
        dims, fortran, dtype = _READERS[version](file)
    except (SyntaxError, TypeError, TokenError, MemoryError, RecursionError) as error:
        # the last two: brackets or signs nested too deep for Python's parser
        raise ValueError(f"its header is no header: {error or type(error).__name__}") from error
    return tuple(int(dim) for dim in dims), bool(fortran), dtype
