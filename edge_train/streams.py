"""Flat buffers through binary file objects, in blocks: little-endian float32."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

_BLOCK = 1 << 20
_IDLE = 100  # writes in a row that take nothing


def is_stream(source: object) -> bool:
    """Whether ``source`` is a file object to read from."""
    return callable(getattr(source, "read", None)) and not hasattr(source, "__dlpack__")


def is_sink(target: object) -> bool:
    """Whether ``target`` is a file object to write to."""
    written = callable(getattr(target, "write", None)) and callable(getattr(target, "close", None))
    return written and not hasattr(target, "__dlpack__")


def elements_left(stream: Any) -> int | None:
    """Float32 elements from the position on; None where the stream cannot tell (a socket).

    Errors: TypeError for a text file, ValueError for a number of bytes that is no multiple of 4.
    """
    if isinstance(stream, io.TextIOBase):
        raise TypeError("the buffer is a file open as text; open it with mode 'rb'")
    seekable = getattr(stream, "seekable", None)
    if seekable is None or not seekable():
        return None
    position = stream.tell()
    left = stream.seek(0, os.SEEK_END) - position
    stream.seek(position)
    if left % 4:
        raise ValueError(f"the buffer has {left} bytes, which is no multiple of 4 (float32)")
    return int(left // 4)


def read_into(stream: Any, arrays: Sequence[np.ndarray]) -> None:
    """Fills contiguous float32 arrays, one after the other.

    Errors: ValueError with both numbers when the stream ends too early; BlockingIOError of one that
    does not block and has nothing yet; OSError of the stream.
    """
    total = sum(array.nbytes for array in arrays)
    done = 0
    for array in arrays:
        view = array.reshape(-1).view(np.uint8).data
        while len(view):
            got = _read(stream, view[:_BLOCK])
            if not got:
                raise ValueError(
                    f"the buffer ended after {done} bytes, expected {total} ({total // 4} "
                    "elements); the parameters were not changed"
                )
            view = view[got:]
            done += got
        if sys.byteorder == "big":
            array.byteswap(inplace=True)


def _read(stream: Any, view: memoryview) -> int:
    direct = hasattr(stream, "readinto")
    data = None if direct else stream.read(len(view))
    got = stream.readinto(view) if direct else data if data is None else len(data)
    if got is None:
        raise _blocked(stream, "has no data yet")
    if not 0 <= got <= len(view):
        raise OSError(f"{_kind(stream)} gave {got} bytes where {len(view)} were asked for")
    if data is not None:
        view[:got] = data
    return int(got)


def write_from(stream: Any, array: np.ndarray) -> None:
    """Writes an array's float32 values, all of them.

    Errors: TypeError for a text file; BlockingIOError of a stream that does not block and takes no
    more now; OSError of the stream, and of one that never takes anything.
    """
    if isinstance(stream, io.TextIOBase):
        raise TypeError("the buffer is a file open as text; open it with mode 'wb'")
    view = np.ascontiguousarray(array, "<f4").reshape(-1).view(np.uint8).data
    idle = 0
    while len(view):
        written = _write(stream, view[:_BLOCK])
        view = view[written:]
        idle = 0 if written else idle + 1
        if idle == _IDLE:
            raise OSError(f"{_kind(stream)} takes nothing: {idle} writes in a row wrote 0 bytes")


def _write(stream: Any, block: memoryview) -> int:
    """The bytes that were taken: raw files and sockets may take less."""
    written = stream.write(block)
    if written is None and isinstance(stream, io.RawIOBase):
        raise _blocked(stream, "takes no more data now")
    if written is None:  # what writes say that are not those of Python's files
        return len(block)
    if not 0 <= written <= len(block):
        raise OSError(f"{_kind(stream)} says that it wrote {written} of {len(block)} bytes")
    return int(written)


def _blocked(stream: Any, what: str) -> BlockingIOError:
    return BlockingIOError(
        errno.EAGAIN,
        f"{_kind(stream)} does not block and {what}; the buffer is not whole. Make it blocking "
        "(os.set_blocking, socket.setblocking), or collect the bytes and pass them as one",
    )


def _kind(stream: Any) -> str:
    return f"the stream ({type(stream).__name__})"
