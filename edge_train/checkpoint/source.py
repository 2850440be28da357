"""Where checkpoint bytes come from: memory or an open file, always by offset and within bounds.

The format reader works on a Source, so that a large file is never held in memory as a whole:
tables come through a small block cache, tensor data goes straight into its array.
"""

from __future__ import annotations

import io
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO, Union

from edge_train.errors import CheckpointCorrupt, CheckpointError

#: what load_checkpoint accepts
Readable = Union[str, "os.PathLike[str]", bytes, bytearray, memoryview, BinaryIO]

_BLOCK = 16 * 1024
_CACHED_BLOCKS = 32
_COPY_BYTES = 1024 * 1024


class Source(ABC):
    """Random access to ``size`` bytes; ``path`` is the file's path where there is one."""

    def __init__(self, label: str, size: int, path: str | None = None) -> None:
        self.label = label
        self.size = size
        self.path = path

    @abstractmethod
    def read(self, offset: int, count: int) -> bytes:
        """``count`` bytes at ``offset``; the caller has checked the bounds."""

    @abstractmethod
    def read_into(self, offset: int, view: memoryview) -> None:
        """Fill the byte view ``view`` from ``offset`` on."""


class MemorySource(Source):
    """Bytes-like data."""

    def __init__(self, data: bytes | bytearray | memoryview, label: str = "<bytes>") -> None:
        self._view = memoryview(data).cast("B")
        super().__init__(label, len(self._view))

    def read(self, offset: int, count: int) -> bytes:
        return bytes(self._view[offset : offset + count])

    def read_into(self, offset: int, view: memoryview) -> None:
        view[:] = self._view[offset : offset + len(view)]


class FileSource(Source):
    """A seekable binary file from its current position on."""

    def __init__(self, file: BinaryIO, label: str, path: str | None = None) -> None:
        self._file = file
        self._base = file.tell()
        self._blocks: dict[int, bytes] = {}
        super().__init__(label, max(file.seek(0, os.SEEK_END) - self._base, 0), path)

    @property
    def base(self) -> int:
        """Where in the file the source begins."""
        return self._base

    @property
    def descriptor(self) -> int:
        """The open file's descriptor."""
        return self._file.fileno()

    def read(self, offset: int, count: int) -> bytes:
        if count > _BLOCK:
            return self._whole(offset, count)
        first, last = offset // _BLOCK, (offset + count - 1) // _BLOCK
        data = b"".join(self._block(index) for index in range(first, last + 1))
        start = offset - first * _BLOCK
        return data[start : start + count]

    def read_into(self, offset: int, view: memoryview) -> None:
        self._file.seek(self._base + offset)
        done = 0
        while done < len(view):
            got = self._file.readinto(view[done:])  # type: ignore[attr-defined]
            if not got:
                raise CheckpointCorrupt(
                    f"checkpoint {self.label}: expected {len(view)} bytes at byte {offset}, got "
                    f"{done}: the file became shorter while it was read; load it again"
                )
            done += got

    def _whole(self, offset: int, count: int) -> bytes:
        data = bytearray(count)
        self.read_into(offset, memoryview(data))
        return bytes(data)

    def _block(self, index: int) -> bytes:
        if index not in self._blocks:
            if len(self._blocks) >= _CACHED_BLOCKS:
                del self._blocks[next(iter(self._blocks))]
            self._blocks[index] = self._whole(
                index * _BLOCK, min(_BLOCK, self.size - index * _BLOCK)
            )
        return self._blocks[index]


@dataclass(frozen=True, slots=True)
class Span:
    """``nbytes`` bytes of a source: a tensor's data, not read yet."""

    source: Source
    offset: int
    nbytes: int

    def read_into(self, view: memoryview) -> None:
        """Fill a byte view of ``nbytes`` bytes."""
        self.source.read_into(self.offset, view)

    def blocks(self) -> Iterator[memoryview]:
        """The bytes in pieces of at most 1 MiB; a piece is valid until the next one."""
        buffer = memoryview(bytearray(min(self.nbytes, _COPY_BYTES)))
        for start in range(0, self.nbytes, _COPY_BYTES):
            view = buffer[: min(_COPY_BYTES, self.nbytes - start)]
            self.source.read_into(self.offset + start, view)
            yield view


@contextmanager
def opened(readable: Readable) -> Iterator[Source]:
    """A Source over a path, bytes-like data or a binary file object, closed at the end if opened.

    Raises FileNotFoundError (and other OSErrors of open), CheckpointError for a folder or a device,
    TypeError for anything else than what Readable lists.
    """
    if isinstance(readable, (bytes, bytearray, memoryview)):
        yield MemorySource(readable)
    elif isinstance(readable, (str, os.PathLike)):
        path = os.fsdecode(readable)
        refuse_special(path)
        with open(path, "rb") as file:
            yield FileSource(file, f"'{path}'", path)
    elif hasattr(readable, "read"):
        yield _of_file_object(readable)
    else:
        raise TypeError(
            f"a checkpoint is a path, bytes or a binary file object, got {type(readable).__name__}"
        )


def refuse_special(path: str) -> None:
    """FileNotFoundError for a missing path, CheckpointError for what is no regular file."""
    mode = os.stat(path).st_mode
    if stat.S_ISDIR(mode):
        raise CheckpointError(f"checkpoint '{path}' is a folder, expected a regular file")
    if not stat.S_ISREG(mode):
        raise CheckpointError(f"checkpoint '{path}' is a device or a pipe, expected a regular file")


def _of_file_object(file: BinaryIO) -> Source:
    label = f"'{getattr(file, 'name', '<file object>')}'"
    if isinstance(file, io.TextIOBase):
        raise TypeError(f"checkpoint {label} is open as text; open it with mode 'rb'")
    seekable = getattr(file, "seekable", None)
    if hasattr(file, "readinto") and seekable is not None and seekable():
        return FileSource(file, label)
    return MemorySource(file.read(), label)
