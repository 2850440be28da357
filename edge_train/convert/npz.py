"""Checkpoint <-> NumPy's .npz: a ZIP of .npy files, one for each tensor, written uncompressed.

``numpy.load`` reads what is written here, ``numpy.savez`` and ``savez_compressed`` write what is
read here. Objects (pickles) are never loaded. bfloat16, which NumPy lacks, is written as float32.
"""

from __future__ import annotations

import io
import math
import os
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any, Literal

import numpy as np
from numpy.lib import format as npy

from edge_train import atomic, dtypes
from edge_train.checkpoint import source as sources
from edge_train.checkpoint.builder import blocks
from edge_train.checkpoint.format import Checkpoint
from edge_train.checkpoint.source import Readable, Span
from edge_train.checkpoint.tensor import Tensor
from edge_train.convert import foreign, intake, lazy
from edge_train.errors import CheckpointCorrupt, CheckpointError
from edge_train.npy import UNZIPPING, read_header

_DATE = (1980, 1, 1, 0, 0, 0)  # the bytes depend on the state alone
_SUFFIX = ".npy"
_MAX_TEXT = 16 * 2**20


def to_npz(source: Readable, destination: str | os.PathLike[str]) -> None:
    """Write a checkpoint as an .npz file, optimizer state and properties included.

    Raises NominalStateError, CheckpointError and its children, OSError of the disk.
    """
    with intake.opened_full(source, "an .npz file") as checkpoint:
        intake.refuse_strings(checkpoint, "an .npz file")
        tensors = foreign.entries(checkpoint)
        for name in tensors:
            if "\0" in name or name in (".", ".."):
                raise CheckpointError(f"a ZIP cannot hold a tensor of the name {name!r}")
        text = np.frombuffer(foreign.description(checkpoint).encode("utf-8"), np.uint8)
        described = Tensor(foreign.KEY, dtypes.UINT8, (len(text),), text)
        with (
            atomic.replacing(destination) as file,
            zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive,
        ):
            for name, tensor in (*tensors.items(), (foreign.KEY, described)):
                _write(archive, name, tensor)


def _write(archive: zipfile.ZipFile, name: str, tensor: Tensor) -> None:
    if tensor.data_type == dtypes.BFLOAT16:
        tensor = lazy.cast(tensor, dtypes.FLOAT)
    dtype = dtypes.NUMPY[tensor.data_type].newbyteorder("<")
    fields = {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": tensor.dims}
    with archive.open(zipfile.ZipInfo(f"{name}{_SUFFIX}", _DATE), "w", force_zip64=True) as member:
        npy.write_array_header_1_0(member, fields)
        for block in () if tensor.data is None else blocks(tensor.data):
            member.write(block)


def from_npz(
    source: Readable,
    destination: str | os.PathLike[str],
    *,
    like: Readable | None = None,
    frozen: Sequence[str] = (),
) -> None:
    """Write a checkpoint with the arrays of an .npz file; arguments as in ``from_safetensors``.

    Raises CheckpointCorrupt for damaged files, CheckpointError for types that a checkpoint cannot
    hold and for what does not fit ``like``, ValueError, OSError.
    """
    with opened(source) as (archive, label):
        intake.write(checkpoint_of(archive, label, like, frozen), destination)


def checkpoint_of(
    archive: zipfile.ZipFile,
    label: str,
    like: Readable | None = None,
    frozen: Sequence[str] = (),
) -> Checkpoint:
    """The checkpoint in an open archive, whose arrays are read when it is written."""
    tensors = _tensors(archive, label)
    described = tensors.pop(foreign.KEY, None)
    if described is None or like is not None or frozen:
        return foreign.arranged(tensors, label, like, frozen)
    if described.data_type != dtypes.UINT8 or described.nbytes > _MAX_TEXT:
        raise CheckpointCorrupt(f"{label}: its array '{foreign.KEY}' is no description")
    try:
        text = described.array().tobytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointCorrupt(f"{label}: its array '{foreign.KEY}' is no text") from error
    return foreign.restored(tensors, text, label)


@contextmanager
def opened(source: Readable) -> Iterator[tuple[zipfile.ZipFile, str]]:
    """The archive, and how messages name it; CheckpointCorrupt for what is none."""
    label = f"npz file {intake.label_of(source)}"
    with _as_file(source) as file:
        try:
            archive = zipfile.ZipFile(file)
        except UNZIPPING as error:
            raise CheckpointCorrupt(
                f"{label} is no .npz file, or is truncated ({error}); use another copy"
            ) from error
        with archive:
            yield archive, label


@contextmanager
def _as_file(source: Readable) -> Iterator[Any]:
    if isinstance(source, (bytes, bytearray, memoryview)):
        yield io.BytesIO(source)
    elif isinstance(source, (str, os.PathLike)):
        sources.refuse_special(os.fsdecode(source))
        with open(source, "rb") as file:
            yield file
    else:
        yield source


def _tensors(archive: zipfile.ZipFile, label: str) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for info in archive.infolist():
        name = info.filename.removesuffix(_SUFFIX)
        if name == info.filename:
            raise CheckpointCorrupt(f"{label}: '{name}' is no array (.npy)")
        if name in tensors:
            raise CheckpointCorrupt(f"{label}: tensor '{name}' is there twice, expected once")
        tensors[name] = _tensor(archive, info, name, f"{label}: tensor '{name}'")
    return tensors


def _tensor(archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str, where: str) -> Tensor:
    try:
        with archive.open(info) as member:
            dims, fortran, dtype = read_header(member)
            start = member.tell()
    except UNZIPPING as error:
        raise CheckpointCorrupt(f"{where} is damaged ({error}); use another copy") from error
    try:
        data_type = dtypes.number_of(dtype)
    except TypeError:
        raise CheckpointError(
            f"{where} is {dtype}, which a checkpoint cannot hold; store it as numbers"
        ) from None
    expected = math.prod(dims) * dtype.itemsize
    if info.file_size - start != expected:
        raise CheckpointCorrupt(
            f"{where} has {info.file_size - start} bytes of data, expected {expected} for "
            f"{dtype.name} {list(dims)}; use another copy"
        )
    data = Span(_Member(archive, info, start, where), 0, expected)
    fortran = fortran and len(dims) > 1
    if fortran or dtype.byteorder == ">":
        moved = _Moved(data, dims, dtype, "F" if fortran else "C", where)
        data = Span(moved, 0, expected)
    return Tensor(name, data_type, dims, data)


class _Member(lazy.Streamed):
    """The data of one ZIP member, read forwards; going back begins the member again."""

    def __init__(
        self, archive: zipfile.ZipFile, info: zipfile.ZipInfo, start: int, where: str
    ) -> None:
        self._archive, self._info, self._start, self._where = archive, info, start, where
        self._file: IO[bytes] | None = None
        self._at = 0
        super().__init__(where, info.file_size - start)

    def read_into(self, offset: int, view: memoryview) -> None:
        try:
            self._seek(offset)
            self._fill(view)
        except UNZIPPING as error:
            raise CheckpointCorrupt(f"{self._where} is damaged ({error})") from error

    def _seek(self, offset: int) -> None:
        if self._file is None or offset < self._at:
            self.close()
            self._file = self._archive.open(self._info)
            self._skip(self._start)
            self._at = 0
        self._skip(offset - self._at)
        self._at = offset

    def _skip(self, count: int) -> None:
        while count:
            got = len(self._file.read(min(count, 2**20))) if self._file else 0
            if not got:
                raise EOFError("it ends too soon")
            count -= got

    def _fill(self, view: memoryview) -> None:
        done = 0
        while done < len(view):
            piece = self._file.read(len(view) - done) if self._file else b""
            if not piece:
                raise EOFError("it ends too soon")
            view[done : done + len(piece)] = piece
            done += len(piece)
        self._at += done
        if self._at == self.size:
            self.close()

    def close(self) -> None:
        """Give the open member back; the next read opens it again."""
        if self._file is not None:
            self._file.read(1)  # behind the last byte zipfile compares the checksum
            self._file.close()
        self._file = None


class _Moved(lazy.Streamed):
    """An array in another order of axes or bytes: taken in whole, given back once it was read."""

    def __init__(
        self,
        data: Span,
        dims: tuple[int, ...],
        dtype: np.dtype[Any],
        order: Literal["C", "F"],
        where: str,
    ) -> None:
        self._data, self._dims, self._dtype, self._order = data, dims, dtype, order
        self._held: memoryview | None = None
        super().__init__(where, data.nbytes)

    def read_into(self, offset: int, view: memoryview) -> None:
        if self._held is None:
            raw = np.empty(self._data.nbytes, np.uint8)
            self._data.read_into(raw.data)
            array = raw.view(self._dtype).reshape(self._dims, order=self._order)
            little = np.ascontiguousarray(array).astype(self._dtype.newbyteorder("<"), copy=False)
            self._held = little.reshape(-1).view(np.uint8).data
        view[:] = self._held[offset : offset + len(view)]
        if offset + len(view) == self.size:
            self._held = None
