"""Arrays over whatever holds numbers in host memory: OrtValues, DeviceBuffers, DLPack tensors."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np

_HOST = (1, 3)  # DLPack: the CPU, and host memory that a GPU knows
_ASKED = (1, 0)  # the version of DLPack since which a tensor says whether it is read-only
_READ_ONLY = 1
_VERSIONED = b"dltensor_versioned"
_IMMUTABLE = ("jax", "jaxlib", "tensorflow")  # whose tensors do not say so


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
    array = host_memory(target, what)
    if not array.flags.c_contiguous:
        raise ValueError(f"{what} is not contiguous; pass one that is")
    if not array.flags.writeable:
        raise ValueError(f"{what} is read-only ({type(target).__name__}); pass one to write to")
    return array


def host_memory(source: Any, what: str = "the source") -> np.ndarray:
    """As ``host_array``, writable wherever the memory is.

    NumPy shows every tensor of a DLPack without versions as read-only, and before 2.1 each tensor.
    """
    array = host_array(source, what)
    if array.flags.writeable or not array.flags.c_contiguous:
        return array
    if isinstance(source, np.ndarray) or not _may_be_written(source):
        return array
    return _at(array)


def _may_be_written(source: Any) -> bool:
    """What a DLPack tensor says; those that cannot say it are not to be given out if read-only."""
    library = type(source).__module__.partition(".")[0]
    own = library in ("onnxruntime", "edge_train")  # their arrays are right about it
    if own or library in _IMMUTABLE or not hasattr(source, "__dlpack__"):
        return False
    try:
        capsule = source.__dlpack__(max_version=_ASKED)
    except TypeError:  # older than versions
        return True
    if not ctypes.pythonapi.PyCapsule_IsValid(ctypes.py_object(capsule), _VERSIONED):
        return True
    point = ctypes.pythonapi.PyCapsule_GetPointer
    point.restype, point.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    head = _Managed.from_address(point(capsule, _VERSIONED))
    return head.major == _ASKED[0] and not head.flags & _READ_ONLY


class _Managed(ctypes.Structure):
    """The head of DLManagedTensorVersioned."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
    )


def _at(array: np.ndarray) -> np.ndarray:
    """A writable view of an array's memory, which it keeps alive."""
    count = math.prod(array.shape) * array.itemsize
    raw = (ctypes.c_uint8 * count).from_address(array.ctypes.data)
    raw.owner = array  # type: ignore[attr-defined]
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
