"""Devices: where memory can be had. ``open_device`` makes one of a name.

"cpu" is the process's own memory, "file:PATH" the pages of a file, copied when written to,
"shm:NAME" memory that other processes see, "opencl:N" an OpenCL device.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from edge_train.counts import whole_number
from edge_train.device import native
from edge_train.device.buffer import DeviceBuffer, Shape, sizes_of
from edge_train.device.names import DeviceName, parse
from edge_train.device.pages import Host, Wish
from edge_train.host_arrays import host_memory

# ns that a file's time may go back without a write: some file systems keep it less exactly on the
# disk than in memory
_ROUNDED = 2_000_000_000


@dataclass(frozen=True)
class DeviceInfo:
    """What a device is: ``memory`` and ``largest`` buffer in bytes, None where nothing limits.

    ``exact`` tells whether its divisions and roots are rounded as the CPU's.
    """

    name: str
    description: str
    shares_memory: bool
    exact: bool
    memory: int | None = None
    largest: int | None = None


class Device:
    """Host memory: "cpu", with the options "huge" (pages of 2 MB where there are such) and "lock".

    The base class of the other devices.
    """

    def __init__(self, name: DeviceName, api: native.Api | None) -> None:
        self._name = name
        self._host = Host(api)

    @property
    def name(self) -> str:
        """The name that ``open_device`` takes."""
        return str(self._name)

    @property
    def kind(self) -> str:
        """ "cpu", "file", "shm" or "opencl"."""
        return self._name.kind

    def allocate(self, shape: Shape, dtype: Any = np.float32) -> DeviceBuffer:
        """A buffer of zeros, on a multiple of 64 bytes.

        Errors: ValueError for a negative size, NativeError when there is no such memory.
        """
        kind, nbytes = layout_of(shape, dtype)
        options = self._name.options
        wish = Wish(huge="huge" in options, lock="lock" in options)
        return DeviceBuffer(self, self._host.new(nbytes, wish), kind, shape)

    def adopt(self, source: Any) -> DeviceBuffer:
        """A buffer over memory that is there: of an array, OrtValue or DLPack tensor, not copied.

        Errors: ValueError for memory that is not contiguous.
        """
        array = host_memory(source)
        if not array.flags.c_contiguous:
            raise ValueError("only contiguous memory can be adopted; pass a copy")
        raw = array.reshape(-1).view(np.uint8)
        return DeviceBuffer(self, raw, array.dtype, array.shape)

    def info(self) -> DeviceInfo:
        """What the device is."""
        description = "host memory" if self._host.api else "host memory (no native library)"
        return DeviceInfo(self.name, description, shares_memory=True, exact=True)

    def synchronise(self) -> None:
        """Returns when everything that was asked of the device is done."""

    def check_pages(self) -> None:
        """ValueError when memory that was given out cannot be read any more."""

    def check(self, code: int, what: str) -> None:
        """NativeError with the device's name unless ``code`` is 0."""
        native.check(code, f"device '{self.name}': {what}")

    def __repr__(self) -> str:
        return f"Device({self.name})"


class FileDevice(Device):
    """The bytes of a file, mapped copy-on-write: reading costs no private memory, writing that of
    the pages written to; the file never changes.

    The file must not be overwritten in place while it is mapped: replace it (as edge_train's own
    saves do). ``check_pages`` notices one that was written to, by its size and its time.
    """

    def __init__(self, name: DeviceName, api: native.Api | None, descriptor: int) -> None:
        super().__init__(name, api)
        self.path = os.path.abspath(name.argument)
        self._file = _Descriptor(descriptor)
        found = os.fstat(descriptor)
        self.file_size, self._written = found.st_size, found.st_mtime_ns

    @classmethod
    def of_descriptor(cls, name: DeviceName, descriptor: int) -> FileDevice:
        """The device of an open file, whose descriptor it closes."""
        return cls(name, native.library(), descriptor)

    def allocate(
        self, shape: Shape | None = None, dtype: Any = np.float32, offset: int = 0
    ) -> DeviceBuffer:
        """The file from byte ``offset`` on; without a shape, all of it.

        Errors: ValueError when the file is shorter, or was written to since it was opened.
        """
        self.check_pages()
        offset = whole_number("offset", offset)
        if shape is None:
            shape = max(self.file_size - offset, 0) // np.dtype(dtype).itemsize
        kind, nbytes = layout_of(shape, dtype)
        label = f"file '{self.path}'"
        if offset % kind.itemsize:
            raise ValueError(f"byte {offset} of {label} is no place for {kind}")
        pages = self._host.of_file(self._file.number, nbytes, offset, Wish(), label)
        return DeviceBuffer(self, pages, kind, shape)

    def check_pages(self) -> None:
        """ValueError when the file was written to since it was mapped.

        Its size tells, or the time of its last change: not before the clock of the file system
        moves on (a few ms; 2 s on FAT). To replace, rename or remove a file does not change it.
        """
        now = os.fstat(self._file.number)
        if now.st_size != self.file_size:
            what = f"had {self.file_size} bytes, now it has {now.st_size}"
        elif not -_ROUNDED < now.st_mtime_ns - self._written <= 0:
            what = f"was written to since, {now.st_size} bytes as before"
        else:
            return
        raise ValueError(
            f"file '{self.path}' is mapped and {what}: it was overwritten in place. Replace files "
            "instead (write another and rename it), and load this one again"
        )

    def info(self) -> DeviceInfo:
        """The file and its size."""
        description = f"file '{self.path}', copied when written to"
        return DeviceInfo(self.name, description, True, True, self.file_size, self.file_size)


class _Descriptor:
    """An open file that is closed with its last user."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.close(self.number)


def layout_of(shape: Shape, dtype: Any) -> tuple[np.dtype[Any], int]:
    """The dtype of a buffer and its bytes; TypeError, ValueError for what cannot be one."""
    kind = np.dtype(dtype)
    if kind.hasobject:
        raise TypeError(f"a buffer of {kind}: expected numbers")
    return kind, kind.itemsize * math.prod(sizes_of(shape))


def open_device(name: str, *, native_library: bool = True, **options: Any) -> Device:
    """The device called ``name``: "cpu", "cpu:huge,lock", "file:PATH", "shm:NAME", "opencl:N".

    ``native_library=False`` does without the native library: all but OpenCL work so too. For
    "opencl", ``copies=True`` keeps host and device memory apart even where they could be one.

    Errors: TypeError, ValueError for a name that is none, for "cuda", and for a missing path;
    OSError for a file that cannot be opened; NativeError where there is no such device.
    """
    parsed = parse(name)
    api = native.library() if native_library else None
    return _MAKERS[parsed.kind](parsed, api, **options)


def _file(name: DeviceName, api: native.Api | None) -> Device:
    if not name.argument:
        raise ValueError("device 'file': say which, as in 'file:PATH'")
    path = os.path.abspath(name.argument)
    return FileDevice(name, api, os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0)))


def _shared(name: DeviceName, api: native.Api | None, **options: Any) -> Device:
    from edge_train.device.shared import SharedDevice

    return SharedDevice(name, api, **options)


def _opencl(name: DeviceName, api: native.Api | None, **options: Any) -> Device:
    from edge_train.device.opencl import OpenClDevice

    return OpenClDevice(name, api, **options)


_MAKERS: dict[str, Callable[..., Device]] = {
    "cpu": Device,
    "file": _file,
    "shm": _shared,
    "opencl": _opencl,
}
