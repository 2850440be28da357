"""OpenCL devices: their memory, and the optimizer's steps there."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from edge_train.device import native
from edge_train.device.buffer import DeviceBuffer, Shape
from edge_train.device.devices import Device, DeviceInfo, layout_of
from edge_train.device.names import DeviceName
from edge_train.device.pages import NativePages
from edge_train.errors import NativeError

VARIABLE = "EDGE_TRAIN_OPENCL"  # the path of a libOpenCL.so elsewhere
_LIBRARIES = (
    "libOpenCL.so.1",
    "libOpenCL.so",
    "/vendor/lib64/libOpenCL.so",
    "/system/vendor/lib64/libOpenCL.so",
    "/vendor/lib/libOpenCL.so",
    "/system/vendor/lib/libOpenCL.so",
)


class OpenClDevice(Device):
    """OpenCL device number N, counted over all platforms.

    Where it shares the host's memory its buffers lie on host pages (``copies=True``: apart).
    """

    def __init__(self, name: DeviceName, api: native.Api | None, copies: bool = False) -> None:
        if api is None:
            raise NativeError(
                f"device '{name}' needs the native library, which is missing here; build it with "
                "tools/build_kernels.py, or use 'cpu'"
            )
        super().__init__(name, api)
        self._api = api
        self._copies = copies
        self._driver = _Driver(api, name)

    def allocate(self, shape: Shape, dtype: Any = np.float32) -> DeviceBuffer:
        """A buffer of zeros that the host owns.

        Errors: NativeError when the device has no room.
        """
        kind, nbytes = layout_of(shape, dtype)
        api, flags = self._api, native.COPIES if self._copies else 0
        what = f"device '{self.name}': {nbytes} bytes cannot be had"
        handle = api.new_handle(
            what,
            lambda out: api.buffer_new(self._driver.handle, nbytes, -1, 0, flags, out),
        )
        pages = NativePages(api, handle, nbytes, False, self._driver)
        return DeviceBuffer(self, pages, kind, shape)

    def info(self) -> DeviceInfo:
        """The driver's name of the device, its version and its memory."""
        query = self._driver.query
        return DeviceInfo(
            self.name,
            f"{self._driver.text(native.NAME)}, {self._driver.text(native.VERSION)}",
            shares_memory=bool(query(native.UNIFIED)) and not self._copies,
            exact=bool(query(native.EXACT)),
            memory=query(native.MEMORY),
            largest=query(native.LARGEST),
        )

    def synchronise(self) -> None:
        """Waits for the device's queue."""
        self.check(self._api.device_synchronise(self._driver.handle), "synchronise")

    def step(self, kernel: int, buffers: list[DeviceBuffer], scalars: np.ndarray) -> None:
        """One of the native library's steps over whole buffers, handed to the device for it.

        Errors: NativeError with the compiler's words when it refuses the kernels.
        """
        for buffer in buffers:
            buffer.to_device()
        handles = np.array([buffer.handle for buffer in buffers], np.uint64)
        numbers = np.ascontiguousarray(scalars, np.float32)
        code = self._api.device_step(
            self._driver.handle,
            kernel,
            handles.ctypes.data,
            numbers.ctypes.data,
            buffers[0].size,
        )
        if code:
            log = self._driver.text(native.BUILD_LOG).strip()
            self.check(code, f"an optimizer step failed{f' ({log[:300]})' if log else ''}")


class _Driver:
    """The open device of the native library; closed with the last buffer."""

    def __init__(self, api: native.Api, name: DeviceName) -> None:
        self._api = api
        self.handle = 0
        self._name = name
        asked = os.environ.get(VARIABLE)
        problems = []
        for library in [asked] if asked else _LIBRARIES:
            code = self._open(library)
            if not code:
                return
            problems.append((library, native.reason(code)))
            if code != native.NO_LIBRARY:  # one was found: it is the device that is missing
                break
        raise NativeError(_text(name, problems))

    def _open(self, library: str) -> int:
        out = np.zeros(1, np.uint64)
        path = np.frombuffer(os.fsencode(library) + b"\0", np.uint8)
        code = self._api.device_open(
            native.OPENCL, self._name.index, path.ctypes.data, 0, out.ctypes.data
        )
        self.handle = int(out[0])
        return code

    def query(self, what: int) -> int:
        value = np.zeros(1, np.uint64)
        code = self._api.device_query(self.handle, what, value.ctypes.data)
        native.check(code, f"device '{self._name}' does not answer")
        return int(value[0])

    def text(self, what: int) -> str:
        out = np.zeros(4096, np.uint8)
        if self._api.device_text(self.handle, what, out.ctypes.data, out.size):
            return ""
        return out.tobytes().split(b"\0")[0].decode("utf-8", "replace")

    def __del__(self) -> None:
        if self.handle:
            self._api.device_close(self.handle)


def _text(name: DeviceName, problems: list[tuple[str, str]]) -> str:
    if all(reason == native.reason(native.NO_LIBRARY) for _, reason in problems):
        tried = ", ".join(library for library, _ in problems)
        return (
            f"device '{name}': no OpenCL library (tried {tried}); install the driver's or PoCL "
            f"(Debian: pocl-opencl-icd, ocl-icd-libopencl1), or name it in {VARIABLE}"
        )
    library, reason = problems[-1]
    return f"device '{name}' cannot be opened with {library}: {reason}"
