"""Checkpoint to file: the layout first, then the pieces front to back, tensor data streamed.

The bytes depend on the Checkpoint alone and are those of onnxruntime-training 1.19.2.

Tensors are inline, or (``has_external_data``, or more than 2 GiB) in a second file, the data file.
Two files cannot be renamed at once, so the data is first completed as ``<path>.data.next``; then
the checkpoint, which holds the identity of its data, is replaced; then the data file is renamed.
``open_checkpoint`` uses the ``.next`` file if its identity is the asked one, so that at every
moment it finds the old state or the new one.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace

from edge_train import atomic, dtypes
from edge_train.checkpoint import source as sources
from edge_train.checkpoint import wire
from edge_train.checkpoint.builder import Builder, Field, blocks
from edge_train.checkpoint.format import (
    DATA_IDENTITY,
    IDENTIFIER,
    VERSION,
    Checkpoint,
    Group,
    Property,
    Tensor,
    read,
)
from edge_train.checkpoint.source import FileSource, Readable, Source
from edge_train.errors import CheckpointError

_EIGHT_BYTE_TYPES = frozenset((dtypes.INT64, dtypes.DOUBLE, dtypes.UINT64))
_IDENTITY_BYTES = 16


@contextmanager
def open_checkpoint(readable: Readable) -> Iterator[Checkpoint]:
    """The checkpoint at a path, in bytes or in a binary file; its tensors can be read inside.

    Raises what ``source.opened`` and ``format.read`` raise.
    """
    with ExitStack() as stack:
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
        builder = None if checkpoint.has_external_data else layout(checkpoint)
        if builder is None or builder.size > wire.MAX_FILE:
            _write_two_files(checkpoint, target)
        else:
            _write_blocks(builder, target)
    except OSError as error:
        raise CheckpointError(
            f"checkpoint '{target}' cannot be written: {error.strerror or error}; what was there "
            "before is unchanged"
        ) from error


def dumps(checkpoint: Checkpoint) -> bytes:
    """The bytes of a checkpoint without a data file."""
    if checkpoint.has_external_data:
        raise CheckpointError("a checkpoint with a data file cannot be one bytes object")
    return b"".join(layout(checkpoint).blocks())


def layout(checkpoint: Checkpoint) -> Builder:
    """Every byte of the file, tensor data by reference."""
    builder = Builder()
    trainable = [_tensor(builder, tensor) for tensor in checkpoint.trainable]
    frozen = [_tensor(builder, tensor) for tensor in checkpoint.frozen]
    # the reference saves no module state where there are no parameters, artifacts always do
    fields = [Field(0, "i", VERSION)]
    if trainable or frozen or checkpoint.groups is None:
        flags = (checkpoint.is_nominal, checkpoint.has_external_data)
        lists = (builder.references(trainable), builder.references(frozen))
        module = [Field(slot, "", at) for slot, at in enumerate(lists)]
        module += [Field(slot, "B", 1) for slot, flag in enumerate(flags, 2) if flag]
        fields.append(Field(1, "", builder.table(module)))
    groups = [_group(builder, group) for group in checkpoint.groups or ()]
    bag = _properties(builder, checkpoint.properties) if checkpoint.properties else None
    if checkpoint.groups is not None:
        fields.append(Field(2, "", builder.references(groups)))
    if bag is not None:
        fields.append(Field(3, "", bag))
    builder.finish(builder.table(fields), IDENTIFIER)
    return builder


def _tensor(builder: Builder, tensor: Tensor) -> int:
    fields = [Field(0, "", builder.text(tensor.name))]
    if tensor.doc_string is not None:
        fields.append(Field(1, "", builder.text(tensor.doc_string)))
    fields.append(Field(2, "", builder.int64s(tensor.dims)))
    fields.append(Field(3, "i", tensor.data_type))
    if tensor.offset >= 0:
        fields.append(Field(6, "q", tensor.offset))
    elif tensor.data is not None:
        data = builder.data(tensor.data)
        fields.append(Field(4, "", data))
    return builder.table(fields)


def _group(builder: Builder, group: Group) -> int:
    states = []
    for parameter, tensors in group.moments:
        moments = [_tensor(builder, tensor) for tensor in tensors]
        name = builder.text(parameter)
        vector = builder.references(moments)
        states.append(builder.table([Field(0, "", name), Field(1, "", vector)]))
    name = builder.text(group.name)
    vector = builder.references(states)
    fields = [Field(0, "", name)]
    if group.initial_learning_rate:
        fields.append(Field(2, "f", group.initial_learning_rate))
    if group.step:
        fields.append(Field(1, "q", group.step))
    return builder.table([*fields, Field(3, "", vector)])


def _properties(builder: Builder, properties: Mapping[str, Property]) -> int:
    ints, floats, strings = [], [], []
    for name, value in sorted(properties.items()):
        field = Field(0, "", builder.text(name))
        if isinstance(value, str):
            strings.append(builder.table([field, Field(1, "", builder.text(value))]))
        elif isinstance(value, float):
            # a default is left out as in the reference; -0.0 equals it and is no default to us
            keep = value != 0 or str(value) == "-0.0"
            floats.append(builder.table([field, Field(1, "f", value)] if keep else [field]))
        else:
            ints.append(builder.table([field, Field(1, "q", value)] if value else [field]))
    vectors = [builder.references(kind) for kind in (ints, floats, strings)]
    return builder.table([Field(slot, "", at) for slot, at in enumerate(vectors)])


def _write_blocks(builder: Builder, path: str) -> None:
    with atomic.replacing(path) as file:
        for block in builder.blocks():
            file.write(block)


def _write_two_files(checkpoint: Checkpoint, path: str) -> None:
    _finish_rename(path)
    trainable, end = _placed(checkpoint.trainable, 0)
    frozen, end = _placed(checkpoint.frozen, end)
    identity = _write_data(trainable + frozen, path)
    properties = {**checkpoint.properties, DATA_IDENTITY: identity}
    builder = layout(
        replace(
            checkpoint,
            trainable=trainable,
            frozen=frozen,
            has_external_data=True,
            properties=properties,
        )
    )
    if builder.size > wire.MAX_FILE:
        raise CheckpointError(
            f"checkpoint '{path}' would have {builder.size} bytes of optimizer moments, the format "
            f"holds {wire.MAX_FILE}; save with include_optimizer_state=False"
        )
    _write_blocks(builder, path)
    _finish_rename(path)


def _placed(tensors: tuple[Tensor, ...], end: int) -> tuple[tuple[Tensor, ...], int]:
    placed = []
    for tensor in tensors:
        align = 8 if tensor.data_type in _EIGHT_BYTE_TYPES else 4
        offset = end + -end % align
        placed.append(replace(tensor, offset=offset))
        end = offset + (0 if tensor.data is None else tensor.data.nbytes)
    return tuple(placed), end


def _write_data(tensors: tuple[Tensor, ...], path: str) -> str:
    """Write ``<path>.data.next``; its last 16 bytes are the identity of all before them."""
    digest = hashlib.blake2b(digest_size=_IDENTITY_BYTES)
    written = 0
    with atomic.replacing(f"{path}.data.next") as file:
        for tensor in tensors:
            gap = bytes(tensor.offset - written)
            data = () if tensor.data is None else blocks(tensor.data)
            for block in (gap, *data):
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
        with open(path, "rb") as file:
            yield FileSource(file, f"'{path}'", path)
    except FileNotFoundError as error:
        raise CheckpointError(
            f"checkpoint {checkpoint.label} keeps tensor data in '{path}', which is missing; copy "
            "both files"
        ) from error


def _identity(path: str) -> str | None:
    try:
        with open(path, "rb") as file:
            file.seek(-_IDENTITY_BYTES, os.SEEK_END)
            return file.read().hex()
    except OSError:
        return None


def _finish_rename(path: str) -> None:
    """Give the data that the checkpoint at ``path`` asks for its final name."""
    new = f"{path}.data.next"
    identity = _identity(new)
    asked = None
    with suppress(CheckpointError, FileNotFoundError), open_checkpoint(path) as checkpoint:
        asked = checkpoint.properties.get(DATA_IDENTITY)
    if identity is not None and identity == asked:
        os.replace(new, f"{path}.data")
        atomic.sync_folder(os.path.dirname(os.path.abspath(path)))
