"""Pages of memory, new or of a file: from the native library, or from Python's mmap without it.

Pages are given back to the system when the last array on them is gone, so that no array ever reads
memory that is not there any more.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_train.device import native
from edge_train.device.native import Api
from edge_train.errors import NativeError

Bytes = NDArray[np.uint8]

_LARGEST_PAGE = 65536  # offsets into a file are multiples of it: one of every page size in use


@dataclass(frozen=True)
class Wish:
    """How pages are to be made: ``huge`` is a wish, ``lock`` a demand (NativeError)."""

    huge: bool = False
    lock: bool = False
    shared: bool = False
    read_only: bool = False

    @property
    def flags(self) -> int:
        """The native library's flags."""
        named = (
            (self.huge, native.HUGE),
            (self.lock, native.LOCK),
            (self.shared, native.SHARED),
            (self.read_only, native.READ_ONLY),
        )
        return sum(flag for asked, flag in named if asked)


class NativePages:
    """A buffer of the native library; ``handle`` is for its functions."""

    def __init__(self, api: Api, handle: int, nbytes: int, read_only: bool, owner: Any) -> None:
        self.api = api
        self.handle = handle
        self.nbytes = nbytes
        self._read_only = read_only
        self._owner = owner  # the device outlives its buffers
        finalizer = weakref.finalize(self, _free, api, handle, owner)
        finalizer.atexit = False  # arrays may still be read while the interpreter ends

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """NumPy's view of the memory; the array keeps this object alive."""
        address = self.api.buffer_address(self.handle)
        return {
            "version": 3,
            "shape": (self.nbytes,),
            "typestr": "|u1",
            "data": (address, self._read_only),
        }

    def array(self) -> Bytes:
        """All bytes, while the host owns them."""
        return np.asarray(self)


def _free(api: Api, handle: int, owner: Any) -> None:
    api.buffer_free(handle)


class PythonPages:
    """Pages through the mmap module."""

    def __init__(self, pages: mmap.mmap, skip: int, nbytes: int) -> None:
        self._pages = pages
        self._skip = skip
        self.nbytes = nbytes

    def array(self) -> Bytes:
        """All bytes; the array keeps the pages."""
        return np.frombuffer(self._pages, np.uint8, self.nbytes, self._skip)


Pages = NativePages | PythonPages


class Host:
    """Makes pages of host memory; ``api`` is None where Python does it."""

    def __init__(self, api: Api | None) -> None:
        self.api = api
        self._device = 0
        if api is not None:
            what = "host memory cannot be used"
            self._device = api.new_handle(
                what, lambda out: api.device_open(native.HOST, 0, 0, 0, out)
            )
            finalizer = weakref.finalize(self, api.device_close, self._device)
            finalizer.atexit = False  # its buffers hold it, and live as long as the process then

    def new(self, nbytes: int, wish: Wish) -> Pages:
        """New zeroed pages; NativeError when the system has no more, or does not lock them."""
        return self._pages(nbytes, -1, 0, wish, f"{nbytes} bytes of memory cannot be had")

    def of_file(self, file: int, nbytes: int, offset: int, wish: Wish, label: str) -> Pages:
        """The ``nbytes`` bytes from ``offset`` on of an open file, which has to have them."""
        size = os.fstat(file).st_size
        if offset < 0 or offset + nbytes > size:
            raise ValueError(f"{label} has {size} bytes, expected {nbytes} from byte {offset} on")
        if not nbytes:
            return self.new(0, Wish())  # an empty file has no page to map
        return self._pages(nbytes, file, offset, wish, f"{label} cannot be mapped")

    def _pages(self, nbytes: int, file: int, offset: int, wish: Wish, what: str) -> Pages:
        if self.api is None:
            return _python_pages(nbytes, file, offset, wish, what)
        api, device = self.api, self._device
        handle = api.new_handle(
            what + (" and locked" if wish.lock else ""),
            lambda out: api.buffer_new(device, nbytes, file, offset, wish.flags, out),
        )
        return NativePages(api, handle, nbytes, wish.read_only, self)


def _python_pages(nbytes: int, file: int, offset: int, wish: Wish, what: str) -> PythonPages:
    skip = offset % _LARGEST_PAGE
    length = max(nbytes + skip, 1)
    protection = mmap.PROT_READ | (0 if wish.read_only else mmap.PROT_WRITE)
    flags = mmap.MAP_SHARED if wish.shared else mmap.MAP_PRIVATE
    try:
        if file < 0:
            pages = mmap.mmap(-1, length, flags | mmap.MAP_ANONYMOUS, protection)
        else:
            pages = mmap.mmap(file, length, flags, protection, offset=offset - skip)
    except (OSError, ValueError, OverflowError) as error:
        raise NativeError(f"{what}: {error}") from error
    if wish.huge and hasattr(mmap, "MADV_HUGEPAGE"):
        pages.madvise(mmap.MADV_HUGEPAGE)
    made = PythonPages(pages, skip, nbytes)
    if wish.lock:
        _lock(made.array(), what)
    return made


def _lock(array: Bytes, what: str) -> None:
    process = ctypes.CDLL(None, use_errno=True)
    address, size = ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes)
    if process.mlock(address, size):
        raise NativeError(f"{what} and locked: {os.strerror(ctypes.get_errno())}")
