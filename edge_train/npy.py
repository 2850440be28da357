"""The heads of .npy files, which NumPy reads as literals of Python; what their archives raise."""

from __future__ import annotations

import zipfile
import zlib
from tokenize import TokenError
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

try:
    from lzma import LZMAError
except ImportError:  # a Python without it cannot read such members at all
    LZMAError = zlib.error  # type: ignore[assignment,misc]

_READERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
#: what reading a damaged .npz may raise, and what ``read_header`` does
UNZIPPING = (
    zipfile.BadZipFile,
    zlib.error,
    LZMAError,
    EOFError,
    NotImplementedError,
    OSError,
    RuntimeError,
    ValueError,
)


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
    if min(dims, default=0) < 0:
        raise ValueError(f"its shape is {list(dims)}")
    return tuple(int(dim) for dim in dims), bool(fortran), dtype
