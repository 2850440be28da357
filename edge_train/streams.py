"""Flat buffers through binary file objects, in blocks: little-endian float32."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

_BLOCK = 1 << 20


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

    Errors: ValueError with both numbers when the stream ends too early.
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
    if hasattr(stream, "readinto"):
        return stream.readinto(view) or 0
    data = stream.read(len(view))
    view[: len(data)] = data
    return len(data)


def write_from(stream: Any, array: np.ndarray) -> None:
    """Writes an array's float32 values, all of them.

    Errors: TypeError for a text file, OSError of the stream.
    """
    if isinstance(stream, io.TextIOBase):
        raise TypeError("the buffer is a file open as text; open it with mode 'wb'")
    view = np.ascontiguousarray(array, "<f4").reshape(-1).view(np.uint8).data
    while len(view):
        written = stream.write(view[:_BLOCK])
        # raw files and sockets may take less; others say None or all
        view = view[len(view[:_BLOCK]) if written is None else written :]
