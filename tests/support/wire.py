"""Messages between a test and the reference process: a length word, then a pickle of plain data.

Arrays travel as (mark, dtype, shape, bytes), since numpy 1 and numpy 2 name the classes of
their pickles differently. Both ends are our own processes, so pickle is safe here.
"""

from __future__ import annotations

import pickle
import struct
from typing import Any

import numpy as np

LENGTH = struct.Struct("<Q")
_ARRAY = "__array__"
_SCALAR = "__scalar__"


def _pack(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return (_ARRAY, value.dtype.str, value.shape, value.tobytes())
    if isinstance(value, np.generic):
        return (_SCALAR, value.dtype.str, (), value.tobytes())
    if isinstance(value, dict):
        return {key: _pack(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_pack(entry) for entry in value]
    return value


def _unpack(value: Any) -> Any:
    if isinstance(value, tuple):
        mark, dtype, shape, data = value
        array = np.frombuffer(data, dtype).reshape(shape)
        return array.copy() if mark == _ARRAY else array[()]
    if isinstance(value, dict):
        return {key: _unpack(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_unpack(entry) for entry in value]
    return value


def encode(message: Any) -> bytes:
    """Bytes of a message, its length word in front."""
    body = pickle.dumps(_pack(message), protocol=4)
    return LENGTH.pack(len(body)) + body


def decode(body: bytes) -> Any:
    return _unpack(pickle.loads(body))
