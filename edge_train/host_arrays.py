"""Arrays over whatever holds numbers in host memory: OrtValues, DeviceBuffers, DLPack tensors."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np

_HOST = (1, 3)  # DLPack: the CPU, and host memory that a GPU knows


def host_array(source: Any, what: str = "the source") -> np.ndarray:
    """The values of an array, OrtValue, DeviceBuffer or DLPack tensor, without a copy.

    Errors: TypeError for anything else, ValueError for a tensor that is not in host memory.
    """
    if isinstance(source, np.ndarray):
        return source
    read = getattr(source, "numpy", None)
    own = type(source).__module__.startswith(("onnxruntime", "edge_train"))
    if callable(read) and (own or not hasattr(source, "__dlpack__")):
        values = read()
        if isinstance(values, np.ndarray):
            return values
    if own or not hasattr(source, "__dlpack__"):
        raise TypeError(
            f"{what} is a {type(source).__name__}, expected a NumPy array, an OrtValue, a "
            "DeviceBuffer or a DLPack tensor"
        )
    _refuse_other_memory(source, what)
    try:
        array: np.ndarray = np.from_dlpack(source)
    except (BufferError, RuntimeError, ValueError, TypeError) as error:
        raise TypeError(
            f"{what} is a {type(source).__name__} that NumPy cannot read by DLPack: {error}"
        ) from error
    return array


def writable_array(target: Any, what: str = "the target") -> np.ndarray:
    """The memory of an array, OrtValue, DeviceBuffer or DLPack tensor, to be written to.

    Errors: TypeError, ValueError as ``host_array``; ValueError for memory that is read-only or not
    contiguous.
    """
    array = host_array(target, what)
    if not array.flags.c_contiguous:
        raise ValueError(f"{what} is not contiguous; pass one that is")
    if not array.flags.writeable:
        if isinstance(target, np.ndarray):
            raise ValueError(f"{what} is read-only")
        # NumPy before 2.1 shows every DLPack tensor as read-only: DLPack did not say
        array = _at(array)
    return array


def _at(array: np.ndarray) -> np.ndarray:
    """A writable view of an array's memory, which the caller keeps alive."""
    count = math.prod(array.shape) * array.itemsize
    raw = (ctypes.c_uint8 * count).from_address(array.ctypes.data)
    flat = np.frombuffer(memoryview(raw).cast("B"), np.uint8)
    seen: np.ndarray = flat.view(array.dtype).reshape(array.shape)
    return seen


def _refuse_other_memory(source: Any, what: str) -> None:
    kind = int(source.__dlpack_device__()[0])
    if kind not in _HOST:
        raise ValueError(
            f"{what} is a {type(source).__name__} on device type {kind} of DLPack, not in host "
            "memory; copy it to the CPU first"
        )
