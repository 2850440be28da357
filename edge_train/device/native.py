"""The C side of device memory (native/device.h), through cffi, or ctypes where cffi is missing.

The library knows no libc: the functions of the system that it needs are looked up in this process
and handed over once. Handles and addresses are plain integers.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from edge_train.errors import NativeError
from edge_train.kernels.native import library_path

ABI = 1
HOST, OPENCL = 0, 1
HUGE, LOCK, SHARED, READ_ONLY, COPIES = 1, 2, 4, 8, 16
MEMORY, LARGEST, UNIFIED, EXACT = range(4)
NAME, VERSION, BUILD_LOG = range(3)
ADAMW0, ADAMW1, SGD, FLUSH = range(4)

NO_LIBRARY = -79

_OPENCL_ERROR = 10000
_WORDS = {"i": "int32_t", "n": "int64_t", "a": "uint64_t"}
#: name -> arguments, result: i int32_t, n int64_t, a uint64_t (an address or a handle)
SIGNATURES = {
    "et_device_abi": ("", "i"),
    "et_device_init": ("ai", "i"),
    "et_device_open": ("iiaia", "i"),
    "et_device_close": ("a", "i"),
    "et_device_query": ("aia", "i"),
    "et_device_text": ("aian", "i"),
    "et_device_synchronise": ("a", "i"),
    "et_device_step": ("aiaan", "i"),
    "et_buffer_new": ("aninia", "i"),
    "et_buffer_free": ("a", "i"),
    "et_buffer_address": ("a", "a"),
    "et_buffer_zero_copy": ("a", "i"),
    "et_buffer_map": ("a", "i"),
    "et_buffer_unmap": ("a", "i"),
    "et_buffer_write": ("anan", "i"),
    "et_buffer_read": ("anan", "i"),
    "et_buffer_copy": ("anann", "i"),
    "et_buffer_fill": ("anni", "i"),
    "et_fence": ("", "i"),
}
#: struct et_system, in order; the first name that this system has is taken
SYSTEM = (
    ("mmap64", "mmap"),
    ("munmap",),
    ("madvise",),
    ("mlock",),
    ("__errno_location", "__errno"),
    ("memcpy",),
    ("malloc",),
    ("free",),
    ("dlopen",),
    ("dlsym",),
)
_OPENCL_NAMES = {
    -1: "no such device",
    -2: "the device is not available",
    -4: "the device's memory is used up",
    -5: "out of resources",
    -6: "out of host memory",
    -11: "its compiler refused the kernels",
    -61: "larger than the device's largest buffer",
}


class Api:
    """The functions of the library; each may be called with plain integers."""

    def __init__(self, functions: dict[str, Callable[..., int]], loaded: Any) -> None:
        self._loaded = loaded  # keeps the library in memory
        self.device_init = functions["et_device_init"]
        self.device_open = functions["et_device_open"]
        self.device_close = functions["et_device_close"]
        self.device_query = functions["et_device_query"]
        self.device_text = functions["et_device_text"]
        self.device_synchronise = functions["et_device_synchronise"]
        self.device_step = functions["et_device_step"]
        self.buffer_new = functions["et_buffer_new"]
        self.buffer_free = functions["et_buffer_free"]
        self.buffer_address = functions["et_buffer_address"]
        self.buffer_zero_copy = functions["et_buffer_zero_copy"]
        self.buffer_map = functions["et_buffer_map"]
        self.buffer_unmap = functions["et_buffer_unmap"]
        self.buffer_write = functions["et_buffer_write"]
        self.buffer_read = functions["et_buffer_read"]
        self.buffer_copy = functions["et_buffer_copy"]
        self.buffer_fill = functions["et_buffer_fill"]
        self.fence = functions["et_fence"]

    def new_handle(self, what: str, call: Callable[[int], int]) -> int:
        """The handle that ``call(address)`` leaves at the address; NativeError if it fails."""
        out = np.zeros(1, np.uint64)
        check(call(out.ctypes.data), what)
        return int(out[0])


def check(code: int, what: str) -> None:
    """NativeError with the reason unless ``code`` is 0."""
    if code:
        raise NativeError(f"{what}: {reason(code)}")


def reason(code: int) -> str:
    """What a code of the library says."""
    if code < -_OPENCL_ERROR:
        error = code + _OPENCL_ERROR
        return f"OpenCL error {error} ({_OPENCL_NAMES.get(error, 'see CL/cl.h')})"
    return os.strerror(-code)


@lru_cache(maxsize=1)
def _default() -> Api | None:
    path = library_path()
    return None if path is None else load(path)


def library() -> Api | None:
    """The library of this machine, None where there is none (or one without device memory)."""
    return _default()


def load(path: Path) -> Api | None:
    """The device memory of a library file; None if it has none of the ABI known here."""
    try:
        functions, loaded = _through_cffi(path)
    except ImportError:
        functions, loaded = _through_ctypes(path)
    except (OSError, AttributeError):
        return None
    if not functions or functions["et_device_abi"]() != ABI:
        return None
    api = Api(functions, loaded)
    addresses = _system()
    if addresses is None or api.device_init(addresses.ctypes.data, addresses.size):
        return None
    return api


def _through_cffi(path: Path) -> tuple[dict[str, Callable[..., int]], Any]:
    from cffi import FFI

    ffi = FFI()
    for name, (arguments, result) in SIGNATURES.items():
        words = ", ".join(_WORDS[kind] for kind in arguments) or "void"
        ffi.cdef(f"{_WORDS[result]} {name}({words});")
    loaded = ffi.dlopen(str(path))
    return {name: getattr(loaded, name) for name in SIGNATURES}, (ffi, loaded)


def _through_ctypes(path: Path) -> tuple[dict[str, Callable[..., int]], Any]:
    kinds = {"i": ctypes.c_int32, "n": ctypes.c_int64, "a": ctypes.c_uint64}
    functions: dict[str, Callable[..., int]] = {}
    try:
        loaded = ctypes.CDLL(str(path))
        for name, (arguments, result) in SIGNATURES.items():
            function = getattr(loaded, name)
            function.argtypes = [kinds[kind] for kind in arguments]
            function.restype = kinds[result]
            functions[name] = function
    except (OSError, AttributeError):
        return {}, None
    return functions, loaded


def _system() -> np.ndarray | None:
    """Addresses of the system's functions, None where one is missing (no Linux)."""
    process = ctypes.CDLL(None)
    found = []
    for names in SYSTEM:
        function = next((getattr(process, n) for n in names if hasattr(process, n)), None)
        if function is None:
            return None
        found.append(ctypes.cast(function, ctypes.c_void_p).value or 0)
    return np.array(found, np.uint64)
