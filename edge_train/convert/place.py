"""Inline <-> external data, of a checkpoint or of an ONNX model: whichever the file is."""

from __future__ import annotations

import os

from edge_train.checkpoint import source as sources
from edge_train.checkpoint.format import IDENTIFIER
from edge_train.checkpoint.source import Readable
from edge_train.convert.onnx_model import rewrite_model
from edge_train.convert.rewrite import rewrite


def move_data(
    source: Readable, destination: str | os.PathLike[str], *, external_data: bool
) -> None:
    """Write ``source`` with its tensors in ``<destination>.data`` (True) or in the file (False).

    Raises what ``rewrite`` raises for a checkpoint (a file or an old folder) and what
    ``rewrite_model`` raises for anything else.
    """
    if is_checkpoint(source):
        rewrite(source, destination, data_file=external_data)
    else:
        rewrite_model(source, destination, external_data=external_data)


def is_checkpoint(readable: Readable) -> bool:
    """Whether the head of a file is a checkpoint's; a folder is one of an old release."""
    if isinstance(readable, (str, os.PathLike)) and os.path.isdir(readable):
        return True
    with sources.opened(readable) as source:
        head = source.read(0, min(8, source.size))
    if not isinstance(readable, (str, os.PathLike, bytes, bytearray, memoryview)):
        readable.seek(-source.size, os.SEEK_END)
    return head[4:] == IDENTIFIER
