"""A checkpoint's tensors as pages of its file: copied when written to, never before.

Asked for with ``load_checkpoint(path, device="file")``. Reading costs no private memory; a tensor
that a Module trains is moved into its Arena.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

import numpy as np

from edge_train import dtypes
from edge_train.checkpoint.source import FileSource, Readable, Span
from edge_train.checkpoint.tensor import Tensor
from edge_train.device.devices import FileDevice
from edge_train.device.names import DeviceName
from edge_train.errors import CheckpointError

_log = logging.getLogger("edge_train")

# a bool has to be checked byte by byte, bfloat16 and strings become something else
_CONVERTED = frozenset((dtypes.STRING, dtypes.BFLOAT16, dtypes.BOOL))


class MappedFiles:
    """The files of one checkpoint."""

    def __init__(self) -> None:
        self._files: dict[int, tuple[FileDevice, np.ndarray]] = {}

    def array(self, tensor: Tensor) -> np.ndarray[Any, Any]:
        """The tensor's bytes where they are; a copy of what is not aligned or needs converting."""
        span = tensor.data
        if (
            not isinstance(span, Span)
            or not isinstance(span.source, FileSource)
            or span.source.path is None
            or tensor.data_type in _CONVERTED
            or sys.byteorder != "little"
            or not span.nbytes
        ):
            return tensor.array()
        dtype = dtypes.NUMPY[tensor.data_type]
        at = span.source.base + span.offset
        if at % dtype.itemsize:
            return tensor.array()
        pages = self._pages(span.source)
        view: np.ndarray = pages[at : at + span.nbytes].view(dtype).reshape(tensor.dims)
        return view

    def check(self) -> None:
        """CheckpointError when a file was written to since it was mapped."""
        for device, _ in self._files.values():
            try:
                device.check_pages()
            except ValueError as error:
                raise CheckpointError(str(error)) from None

    def _pages(self, source: FileSource) -> np.ndarray:
        if id(source) not in self._files:
            name = DeviceName("file", source.path or "")
            device = FileDevice.of_descriptor(name, os.dup(source.descriptor))
            pages = device.allocate(device.file_size, np.uint8).numpy()
            self._files[id(source)] = device, pages
            _log.info("%s is mapped: replace it, never overwrite it in place", source.label)
        return self._files[id(source)][1]


def refuse_other_files(checkpoint_uri: Readable, argument: str) -> None:
    """ValueError unless the file of device "file:PATH" is the checkpoint's own or its data file."""
    if not isinstance(checkpoint_uri, (str, os.PathLike)):
        raise ValueError("device 'file' maps a checkpoint that is loaded by its path")
    path = os.fsdecode(checkpoint_uri)
    if argument and not any(_same(argument, own) for own in (path, f"{path}.data")):
        raise ValueError(
            f"device 'file:{argument}' is neither the checkpoint '{path}' nor its data file; say "
            "device='file'. A file with the flat buffer goes to Module(device=...)"
        )


def _same(first: str, second: str) -> bool:
    try:
        return os.path.samefile(first, second)
    except OSError:
        return False
