"""How every converter opens a checkpoint and writes one: stricter than a training session.

A session takes the first of two tensors of one name, as the reference does; a converter refuses
them, because what it wrote would depend on which of the two was meant.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from edge_train.checkpoint import files
from edge_train.checkpoint.format import DATA_IDENTITY, Checkpoint, Property, validate
from edge_train.checkpoint.source import Readable
from edge_train.checkpoint.tensor import Tensor
from edge_train.errors import CheckpointCorrupt, CheckpointError, NominalStateError


@contextmanager
def opened(readable: Readable) -> Iterator[Checkpoint]:
    """The checkpoint at a path (also a folder of before 1.16), in bytes or in a binary file.

    Its tensors are read inside the block. Raises what ``files.open_checkpoint`` raises, and
    CheckpointCorrupt naming a tensor that is there twice.
    """
    with files.open_checkpoint(readable) as checkpoint:
        refuse_repeated(checkpoint, label_of(readable))
        properties = {n: v for n, v in checkpoint.properties.items() if n != DATA_IDENTITY}
        yield replace(checkpoint, properties=properties)  # a save makes the identity anew


@contextmanager
def opened_full(readable: Readable, purpose: str) -> Iterator[Checkpoint]:
    """``opened``; NominalStateError for a checkpoint without data, saying what needs it."""
    with opened(readable) as checkpoint:
        if checkpoint.is_nominal:
            raise NominalStateError(
                f"checkpoint {label_of(readable)} is nominal (names without data), {purpose} needs "
                "data; fill it first (edge-train convert fill)"
            )
        yield checkpoint


def write(checkpoint: Checkpoint, path: str | os.PathLike[str]) -> None:
    """Validate, then write in place of ``path``, whole or not at all.

    Raises CheckpointError and its children, naming the tensor.
    """
    label = f"to write to '{os.fspath(path)}'"
    refuse_repeated(checkpoint, label)
    validate(checkpoint, label)
    files.write(checkpoint, path)


def parameters(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """The tensors of the parameters by name, trainable ones first."""
    return {tensor.name: tensor for tensor in checkpoint.trainable + checkpoint.frozen}


def is_same(one: Property | None, two: Property | None) -> bool:
    """Whether two properties are equal: NaN is NaN, 1 is not 1.0."""
    return repr(one) == repr(two)


def label_of(readable: Readable) -> str:
    """How messages name what is read."""
    if isinstance(readable, (str, os.PathLike)):
        return f"'{os.fsdecode(readable)}'"
    if isinstance(readable, (bytes, bytearray, memoryview)):
        return "<bytes>"
    return f"'{getattr(readable, 'name', '<file object>')}'"


def refuse_repeated(checkpoint: Checkpoint, label: str) -> None:
    """CheckpointCorrupt naming what stands twice in a checkpoint."""
    names = [tensor.name for tensor in checkpoint.trainable + checkpoint.frozen]
    _refuse_twice(names, f"checkpoint {label}: the parameter")
    for group in checkpoint.groups or ():
        where = f"checkpoint {label}: group '{group.name}': the state of"
        _refuse_twice([name for name, _ in group.moments], where)
        for name, moments in group.moments:
            _refuse_twice([moment.name for moment in moments], f"{where} '{name}':")


def _refuse_twice(names: Iterable[str], where: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise CheckpointCorrupt(
                f"{where} '{name}' is there twice, expected once; remove one of the two"
            )
        seen.add(name)


def refuse_strings(checkpoint: Checkpoint, what: str) -> None:
    """CheckpointError naming a tensor of strings, which ``what`` cannot hold."""
    for where, tensor in checkpoint.tensors():
        if tensor.strings is not None:
            raise CheckpointError(f"{where} holds strings, which {what} cannot hold")
