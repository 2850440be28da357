"""Data in files: .npz and .npy without reading them whole, CSV, folders of images or of arrays."""

from __future__ import annotations

import logging
import math
import os
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import numpy as np

from edge_train.data.images import ImageRows
from edge_train.data.sources import Array, ArrayRows, Rows
from edge_train.data.tables import read_csv
from edge_train.errors import DataError
from edge_train.npy import UNZIPPING, read_header

_log = logging.getLogger("edge_train")
_LOCAL_HEADER = struct.Struct("<4s22xHH")


def open_path(path: str | os.PathLike[str], **options: object) -> Rows:
    """The rows in a file or folder.

    ``.npz``: its arrays by name. ``.npy``: one array. ``.csv``: ``read_csv``, which takes the
    options. A folder with .npy files: arrays by the files' names. Any other folder: a subfolder of
    images for each class, ``ImageRows``, which takes the options.

    Raises FileNotFoundError and DataError.
    """
    place = Path(path)
    if place.is_dir():
        arrays = {file.stem: map_npy(file) for file in sorted(place.glob("*.npy"))}
        return ArrayRows(arrays) if arrays else ImageRows.of(place, **options)  # type: ignore[arg-type]
    if not place.exists():
        raise FileNotFoundError(f"there is no file or folder '{place}'")
    suffix = place.suffix.lower()
    if suffix == ".npz":
        return ArrayRows(map_npz(place))
    if suffix == ".npy":
        return ArrayRows((map_npy(place),))
    if suffix in (".csv", ".tsv"):
        return read_csv(place, **options)  # type: ignore[arg-type]
    raise DataError(f"'{place}' is no .npz, .npy, .csv, .tsv file and no folder")


def map_npy(path: Path) -> Array:
    """The array of a .npy file, mapped into memory."""
    try:
        with open(path, "rb") as file:
            array = _mapped(file, path, path.name)
    except (ValueError, OSError, EOFError) as error:
        raise DataError(f"'{path}' is no usable .npy file: {error}") from error
    if array.ndim == 0:
        raise DataError(f"'{path}' holds a single number, expected rows")
    return array


def map_npz(path: Path) -> Mapping[str, Array]:
    """The arrays of a .npz file; those stored without compression are mapped, others are read."""
    arrays: dict[str, Array] = {}
    try:
        with zipfile.ZipFile(path) as archive, open(path, "rb") as file:
            for member in archive.infolist():
                if member.compress_type == zipfile.ZIP_STORED:
                    _go_to(file, member)
                    arrays[_stem(member)] = _mapped(file, path, _what(member))
                else:
                    arrays[_stem(member)] = _read(archive, member, path)
    except (*UNZIPPING, struct.error) as error:
        raise DataError(f"'{path}' is no usable .npz file: {error}") from error
    return arrays


def _what(member: zipfile.ZipInfo) -> str:
    return f"member '{member.filename}'"


def _stem(member: zipfile.ZipInfo) -> str:
    return member.filename.removesuffix(".npy")


def _read(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path) -> Array:
    if member.file_size > 2**25:
        _log.warning(
            "'%s' is compressed: its array '%s' takes %.0f MB; np.savez leaves it on disk",
            path,
            _stem(member),
            member.file_size / 2**20,
        )
    with archive.open(member) as stream:
        shape, _, dtype = read_header(stream)
        _check_size(shape, dtype, member.file_size - stream.tell(), _what(member))
    with archive.open(member) as stream:
        array: Array = np.lib.format.read_array(stream, allow_pickle=False)
    return array


def _go_to(file: IO[bytes], member: zipfile.ZipInfo) -> None:
    """To where the data of a member begins."""
    file.seek(member.header_offset)
    magic, name, extra = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
    if magic != b"PK\x03\x04":
        raise ValueError(f"member '{member.filename}' is not where the index says")
    file.seek(name + extra, os.SEEK_CUR)


def _check_size(shape: tuple[int, ...], dtype: np.dtype, size: int, what: str) -> None:
    if dtype.hasobject:
        raise ValueError(f"{what} holds Python objects")
    if math.prod(shape) * dtype.itemsize > size:
        raise ValueError(f"{what} has {size} bytes of data, too few for {dtype} {list(shape)}")


def _mapped(file: IO[bytes], path: Path, what: str) -> Array:
    shape, fortran, dtype = read_header(file)
    _check_size(shape, dtype, os.fstat(file.fileno()).st_size - file.tell(), what)
    order = "F" if fortran else "C"
    if 0 in shape:
        return np.empty(shape, dtype)
    return np.memmap(path, dtype, "r", file.tell(), shape, order)  # type: ignore[call-overload, no-any-return]
