"""DeviceBuffer: one piece of a device's memory, seen as NumPy array, DLPack tensor or OrtValue."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from edge_train.counts import check_count, whole_number
from edge_train.device.pages import NativePages, Pages
from edge_train.errors import ShapeMismatch
from edge_train.host_arrays import host_array

if TYPE_CHECKING:
    import onnxruntime

    from edge_train.device.devices import Device

Shape = int | Sequence[int]


def sizes_of(shape: Shape) -> tuple[int, ...]:
    """A shape as Python's ints; TypeError, ValueError for what are no sizes."""
    sizes = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
    return tuple([check_count("every size of a shape", size, 0) for size in sizes])


class DeviceBuffer:
    """Memory of ``device`` with a dtype and a shape; made by ``Device.allocate`` and its kin.

    A context manager: leaving it frees the memory. The system gets it back as soon as no array,
    tensor or OrtValue that was made of it is left; using a freed buffer is a ValueError.

    A buffer on OpenCL belongs to the host (as new) or, between ``to_device`` and ``to_host``, to
    the device; arrays taken before are stale in between.
    """

    def __init__(
        self, device: Device, pages: Pages | np.ndarray, dtype: np.dtype[Any], shape: Shape
    ) -> None:
        self.device = device
        self.dtype = dtype
        self.shape = sizes_of(shape)
        self._pages: Pages | np.ndarray | None = pages

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The number of bytes."""
        return self.size * self.dtype.itemsize

    @property
    def freed(self) -> bool:
        """Whether ``free`` was called."""
        return self._pages is None

    @property
    def shares_memory(self) -> bool:
        """Whether the device works on the host's pages, without a copy."""
        pages = self._alive()
        return not isinstance(pages, NativePages) or bool(pages.api.buffer_zero_copy(pages.handle))

    @property
    def handle(self) -> int:
        """The native library's handle; ValueError for a buffer that it does not know."""
        pages = self._alive()
        if not isinstance(pages, NativePages):
            raise ValueError(f"{self!r} is no buffer of the native library")
        return pages.handle

    @property
    def on_device(self) -> bool:
        """Whether the device owns the memory now, and the host does not see it."""
        pages = self._alive()
        return isinstance(pages, NativePages) and not pages.api.buffer_address(pages.handle)

    def numpy(self) -> np.ndarray:
        """A view of the memory in the buffer's shape, handed to the host if it is not there."""
        self.to_host()
        pages = self._alive()
        raw = pages if isinstance(pages, np.ndarray) else pages.array()
        return raw[: self.nbytes].view(self.dtype).reshape(self.shape)

    def ortvalue(self) -> onnxruntime.OrtValue:
        """The memory as an OrtValue, without a copy; for I/O binding as well."""
        import onnxruntime  # not where only files are converted

        array = self.numpy()
        return onnxruntime.OrtValue.ortvalue_from_numpy(array)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        array = self.numpy()
        if dtype is not None and array.dtype != dtype:
            if copy is False:
                raise ValueError(f"{self!r} cannot be seen as {dtype} without a copy")
            return array.astype(dtype)
        return array.copy() if copy else array

    def __dlpack__(self, **options: Any) -> Any:
        """The memory as a DLPack capsule of the CPU, without a copy."""
        return self.numpy().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        """(1, 0): the CPU, where ``__dlpack__`` shows the memory."""
        self._alive()
        return 1, 0

    def write(self, source: Any, offset: int = 0) -> None:
        """Copies an array, OrtValue, DeviceBuffer or DLPack tensor in, from element ``offset`` on.

        Errors: TypeError for another dtype, ShapeMismatch for more than there is room.
        """
        offset = whole_number("offset", offset)
        if isinstance(source, DeviceBuffer):
            source._copy_to(self, offset)
            return
        array = host_array(source)
        self._check_room(array.size, array.dtype, offset)
        flat = np.ascontiguousarray(array).reshape(-1)
        pages = self._alive()
        if isinstance(pages, NativePages) and self.on_device:
            start = offset * self.dtype.itemsize
            self.device.check(
                pages.api.buffer_write(pages.handle, start, flat.ctypes.data, flat.nbytes), "write"
            )
        else:
            self._writable().reshape(-1)[offset : offset + flat.size] = flat

    def read(self, offset: int = 0, count: int | None = None) -> np.ndarray:
        """A copy of ``count`` elements (default: all the rest) from element ``offset`` on."""
        offset = whole_number("offset", offset)
        count = self.size - offset if count is None else whole_number("count", count)
        self._check_room(count, self.dtype, offset)
        pages = self._alive()
        if isinstance(pages, NativePages) and self.on_device:
            out = np.empty(count, self.dtype)
            start = offset * self.dtype.itemsize
            self.device.check(
                pages.api.buffer_read(pages.handle, start, out.ctypes.data, out.nbytes), "read"
            )
            return out
        copied: np.ndarray = self.numpy().reshape(-1)[offset : offset + count].copy()
        return copied

    def fill(self, value: float) -> None:
        """Sets every element."""
        pages = self._alive()
        if isinstance(pages, NativePages) and self.on_device:
            if self.dtype.itemsize != 4:
                self.write(np.full(self.size, value, self.dtype))
                return
            pattern = int(np.array(value, self.dtype).view(np.int32))
            code = pages.api.buffer_fill(pages.handle, 0, self.nbytes, pattern)
            self.device.check(code, "fill")
        else:
            self._writable()[...] = value

    def to_device(self) -> None:
        """Hands the memory to the device; nothing where host and device are one."""
        pages = self._alive()
        if isinstance(pages, NativePages):
            self.device.check(pages.api.buffer_unmap(pages.handle), "hand over")

    def to_host(self) -> None:
        """Hands the memory to the host, with what the device wrote."""
        pages = self._alive()
        if isinstance(pages, NativePages):
            self.device.check(pages.api.buffer_map(pages.handle), "take back")

    def free(self) -> None:
        """Gives the memory up; once more is allowed."""
        self._pages = None

    def __enter__(self) -> DeviceBuffer:
        self._alive()
        return self

    def __exit__(self, *_: object) -> None:
        self.free()

    def __len__(self) -> int:
        return self.shape[0] if self.shape else 0

    def __repr__(self) -> str:
        state = ", freed" if self.freed else ""
        return f"DeviceBuffer({self.device.name}, {self.dtype} {list(self.shape)}{state})"

    def _alive(self) -> Pages | np.ndarray:
        if self._pages is None:
            raise ValueError(f"{self!r} was freed; allocate another one")
        self.device.check_pages()
        return self._pages

    def _writable(self) -> np.ndarray:
        array = self.numpy()
        if not array.flags.writeable:
            raise ValueError(f"{self!r} is read-only")
        return array

    def _check_room(self, count: int, dtype: np.dtype[Any], offset: int) -> None:
        if dtype != self.dtype:
            raise TypeError(f"{self!r} takes {self.dtype}, got {dtype}; convert it first")
        if offset < 0 or count < 0 or offset + count > self.size:
            raise ShapeMismatch(
                f"{self!r} has {self.size} elements: {count} from element {offset} on do not fit"
            )

    def _copy_to(self, target: DeviceBuffer, offset: int) -> None:
        target._check_room(self.size, self.dtype, offset)
        mine, other = self._alive(), target._alive()
        if (
            isinstance(mine, NativePages)
            and isinstance(other, NativePages)
            and mine.api is other.api
        ):
            start = offset * self.dtype.itemsize
            code = mine.api.buffer_copy(other.handle, start, mine.handle, 0, self.nbytes)
            self.device.check(code, "copy")
        else:
            target.write(self.numpy(), offset)
