"""Element types: the numbers of onnx.TensorProto.DataType, shared by graphs and checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

FLOAT, UINT8, INT8, UINT16, INT16, INT32, INT64, STRING, BOOL = range(1, 10)
FLOAT16, DOUBLE, UINT32, UINT64, COMPLEX64, COMPLEX128, BFLOAT16 = range(10, 17)

#: data type number -> NumPy dtype in native byte order (bfloat16, float8, int4, strings have none)
NUMPY: Mapping[int, np.dtype[Any]] = MappingProxyType(
    {
        FLOAT: np.dtype(np.float32),
        UINT8: np.dtype(np.uint8),
        INT8: np.dtype(np.int8),
        UINT16: np.dtype(np.uint16),
        INT16: np.dtype(np.int16),
        INT32: np.dtype(np.int32),
        INT64: np.dtype(np.int64),
        BOOL: np.dtype(np.bool_),
        FLOAT16: np.dtype(np.float16),
        DOUBLE: np.dtype(np.float64),
        UINT32: np.dtype(np.uint32),
        UINT64: np.dtype(np.uint64),
        COMPLEX64: np.dtype(np.complex64),
        COMPLEX128: np.dtype(np.complex128),
    }
)
_NUMBER = MappingProxyType({dtype: number for number, dtype in NUMPY.items()})
_NAMES = MappingProxyType({STRING: "string", BFLOAT16: "bfloat16"})


def number_of(dtype: np.dtype | type) -> int:
    """The ONNX number of a NumPy dtype (byte order ignored); TypeError if ONNX has none."""
    key = np.dtype(dtype).newbyteorder("=")
    if key not in _NUMBER:
        raise TypeError(f"dtype {key} has no ONNX data type")
    return _NUMBER[key]


def name_of(number: int) -> str:
    """A readable name: "float32", "int64", "bfloat16", "data type 99"."""
    if number in NUMPY:
        return str(NUMPY[number].name)
    return _NAMES.get(number, f"data type {number}")
