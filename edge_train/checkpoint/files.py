"""Checkpoint files: opening one, and replacing one so that old or new is always readable.

Tensors are inline or (if the state came so, or from 1800 MiB on) in a second file, the data file.
Two files cannot be renamed at once, so the data is first completed as ``<path>.data.next``; then
the checkpoint, which holds the identity of its data, is replaced; then the data file is renamed.
``open_checkpoint`` takes the ``.next`` file if its identity is the asked one, so that at every
moment it finds the old state or the new one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from itertools import chain

from edge_train import atomic, dtypes
from edge_train.checkpoint import legacy
from edge_train.checkpoint import source as sources
from edge_train.checkpoint.builder import Builder, blocks
from edge_train.checkpoint.format import (
    DATA_IDENTITY,
    IDENTITY_BYTES,
    Checkpoint,
    Group,
    read,
)
from edge_train.checkpoint.layout import layout
from edge_train.checkpoint.source import FileSource, Readable, Source
from edge_train.checkpoint.tensor import Tensor
from edge_train.errors import CheckpointError

_EIGHT_BYTE_TYPES = frozenset((dtypes.INT64, dtypes.DOUBLE, dtypes.UINT64))

#: offsets end at 2 GiB; from here on generate_artifacts uses a data file, and so does ``write``
INLINE_LIMIT = 1800 * 2**20


@contextmanager
def open_checkpoint(readable: Readable) -> Iterator[Checkpoint]:
    """The checkpoint at a path, in bytes or in a binary file; its tensors can be read inside.

    A folder is read in the format of releases before 1.16. Raises what ``source.opened``,
    ``format.read`` and ``legacy.opened`` raise.
    """
    with ExitStack() as stack:
        if isinstance(readable, (str, os.PathLike)) and os.path.isdir(readable):
            yield stack.enter_context(legacy.opened(os.fsdecode(readable)))
            return
        source = stack.enter_context(sources.opened(readable))

        def open_data(identity: str | None) -> Source:
            return stack.enter_context(_opened_data(source, identity))

        yield read(source, open_data)


def write(checkpoint: Checkpoint, path: str | os.PathLike[str]) -> None:
    """Write in place of ``path``: the old file or the new one is there at every moment.

    Raises CheckpointError if the disk or the path refuses; the old file is untouched then.
    """
    target = os.fspath(path)
    try:
        if checkpoint.has_external_data or inline_bytes(checkpoint) >= INLINE_LIMIT:
            _write_two_files(checkpoint, target)
        else:
            _write_blocks(layout(checkpoint), target)
    except OSError as error:
        raise CheckpointError(
            f"checkpoint '{target}' cannot be written: {_reason(error, target)}; the state saved "
            "before is still there"
        ) from error


def _reason(error: OSError, path: str) -> str:
    """What the disk said, and of which file where that is the one beside ``path``."""
    reason = error.strerror or str(error)
    beside = f"{os.path.basename(path)}.data"
    file = error.filename
    named = isinstance(file, str) and os.path.basename(file).startswith(beside)
    return f"'{file}' {reason}" if named else reason


def _write_blocks(builder: Builder, path: str) -> None:
    with atomic.replacing(path) as file:
        for block in builder.blocks():
            file.write(block)


def _write_two_files(checkpoint: Checkpoint, path: str) -> None:
    for taken in (path, f"{path}.data"):  # before gigabytes are written beside it
        atomic.refuse_special(taken)
    _settle(path)
    trainable, end = _placed(checkpoint.trainable, 0)
    frozen, end = _placed(checkpoint.frozen, end)
    moved = replace(checkpoint, trainable=trainable, frozen=frozen, has_external_data=True)
    if inline_bytes(moved) >= INLINE_LIMIT:
        moved = replace(moved, groups=_placed_groups(moved.groups or (), end))
    identity = _write_data(moved, path)
    properties = {**checkpoint.properties, DATA_IDENTITY: identity}
    try:
        _write_blocks(layout(replace(moved, properties=properties)), path)
    except BaseException:
        with suppress(OSError):
            _settle(path)  # the rename may have happened before the fault
        raise
    _settle(path)


def _placed(tensors: tuple[Tensor, ...], end: int) -> tuple[tuple[Tensor, ...], int]:
    placed = []
    for tensor in tensors:
        if tensor.strings is not None:
            placed.append(tensor)
            continue
        align = 8 if tensor.data_type in _EIGHT_BYTE_TYPES else 4
        offset = end + -end % align
        placed.append(replace(tensor, offset=offset))
        end = offset + (0 if tensor.data is None else tensor.data.nbytes)
    return tuple(placed), end


def _placed_groups(groups: tuple[Group, ...], end: int) -> tuple[Group, ...]:
    placed = []
    for group in groups:
        moments = []
        for parameter, tensors in group.moments:
            there, end = _placed(tensors, end)
            moments.append((parameter, there))
        placed.append(replace(group, moments=tuple(moments)))
    return tuple(placed)


def inline_bytes(checkpoint: Checkpoint) -> int:
    """The bytes of tensors that would stand in the checkpoint file itself."""
    return sum(
        tensor.data.nbytes
        for _, tensor in checkpoint.tensors()
        if tensor.offset < 0 and tensor.data is not None
    )


def _write_data(checkpoint: Checkpoint, path: str) -> str:
    """Write ``<path>.data.next``; its last 16 bytes are the identity of all before them."""
    import hashlib  # here: the OpenSSL behind it takes megabytes that one file does not need

    digest = hashlib.blake2b(digest_size=IDENTITY_BYTES)
    written = 0
    with atomic.replacing(f"{path}.data.next") as file:
        for _, tensor in checkpoint.tensors():
            if tensor.offset < 0:
                continue
            gap: list[bytes | memoryview] = [bytes(tensor.offset - written)]
            for block in chain(gap, () if tensor.data is None else blocks(tensor.data)):
                file.write(block)
                digest.update(block)
                written += len(block)
        file.write(digest.digest())
    return digest.hexdigest()


@contextmanager
def _opened_data(checkpoint: Source, identity: str | None) -> Iterator[Source]:
    if checkpoint.path is None:
        raise CheckpointError(
            f"checkpoint {checkpoint.label} keeps tensor data in a second file '<path>.data'; load "
            "it by its path"
        )
    path = f"{checkpoint.path}.data"
    if identity is not None and _identity(f"{path}.next") == identity:
        path += ".next"
    try:
        sources.refuse_special(path)
        file = open(path, "rb")  # noqa: SIM115  (closed below)
    except FileNotFoundError as error:
        raise CheckpointError(
            f"checkpoint {checkpoint.label} keeps tensor data in '{path}', which is missing; copy "
            "both files"
        ) from error
    with file:
        yield FileSource(file, f"'{path}'", path)


def _identity(path: str) -> str | None:
    try:
        sources.refuse_special(path)  # a pipe would wait for ever
        with open(path, "rb") as file:
            file.seek(-IDENTITY_BYTES, os.SEEK_END)
            return file.read().hex()
    except (OSError, CheckpointError):
        return None


def _settle(path: str) -> None:
    """Rename the ``.next`` data file if the checkpoint at ``path`` asks for it, else remove it."""
    new = f"{path}.data.next"
    identity = _identity(new)
    if identity is None:
        return
    asked = None
    with suppress(CheckpointError, FileNotFoundError), open_checkpoint(path) as checkpoint:
        asked = checkpoint.properties.get(DATA_IDENTITY)
    if identity != asked:
        os.unlink(new)
    else:
        os.replace(new, f"{path}.data")
        atomic.sync_folder(os.path.dirname(os.path.abspath(path)))
