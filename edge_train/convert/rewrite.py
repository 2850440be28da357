"""A checkpoint to a checkpoint with the same parameters: where data lies, what is kept, names.

Reads the folder format of releases before 1.16 too, so ``rewrite`` is also the way from there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace

from edge_train.checkpoint import files
from edge_train.checkpoint.format import Checkpoint
from edge_train.checkpoint.parameter import unknown_name
from edge_train.checkpoint.source import Readable
from edge_train.checkpoint.tensor import Tensor
from edge_train.convert import intake, private
from edge_train.errors import CheckpointError

Path = str | os.PathLike[str]


def rewrite(
    source: Readable,
    destination: Path,
    *,
    data_file: bool | None = None,
    optimizer: bool = True,
    properties: bool = True,
) -> None:
    """Write ``source`` again as a current checkpoint file.

    ``data_file`` puts the tensors into ``<destination>.data`` (True), into the file itself
    (False), or leaves them where they are (None). ``optimizer`` and ``properties`` say what else
    is kept. Raises FileNotFoundError, CheckpointError and its children; CheckpointError too where
    the data is too large to be inline.
    """
    with intake.opened(source) as checkpoint:
        if data_file is not None:
            checkpoint = replace(checkpoint, has_external_data=data_file)
        if not optimizer:
            groups = None if checkpoint.groups is None else ()
            checkpoint = private.outside_a_run(replace(checkpoint, groups=groups))
        if not properties:
            checkpoint = replace(checkpoint, properties={})
        size = files.inline_bytes(checkpoint)
        if data_file is False and size >= files.INLINE_LIMIT:
            raise CheckpointError(
                f"checkpoint {intake.label_of(source)} has {size} bytes of tensors; one file holds "
                f"less than {files.INLINE_LIMIT}: keep the data file"
            )
        intake.write(checkpoint, destination)


def rename(source: Readable, destination: Path, names: Mapping[str, str]) -> None:
    """Write ``source`` with parameters renamed, ``{old: new}``, their moments with them.

    An old name that ends in ``*`` stands for every name that begins so; the new one then ends in
    ``*`` too (``{"module.*": "*"}`` cuts a prefix). Raises ValueError for an unknown name and for a
    malformed pair, CheckpointCorrupt if two parameters would share a name, and what
    ``intake.opened`` raises.
    """
    with intake.opened(source) as checkpoint:
        known = list(intake.parameters(checkpoint))
        new_name = _renaming(names, known)

        def renamed(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return tuple(replace(tensor, name=new_name(tensor.name)) for tensor in tensors)

        groups = checkpoint.groups
        if groups is not None:
            groups = tuple(
                replace(g, moments=tuple((new_name(name), own) for name, own in g.moments))
                for g in groups
            )
        changed: Checkpoint = replace(
            checkpoint,
            trainable=renamed(checkpoint.trainable),
            frozen=renamed(checkpoint.frozen),
            groups=groups,
        )
        changed = private.with_choice_renamed(private.outside_a_run(changed), new_name)
        intake.write(changed, destination)


def _renaming(names: Mapping[str, str], known: list[str]) -> Callable[[str], str]:
    prefixes: dict[str, str] = {}
    exact: dict[str, str] = {}
    for old, new in names.items():
        if old.endswith("*") != new.endswith("*"):
            raise ValueError(f"rename '{old}' to '{new}': either both end in '*' or neither does")
        if old.endswith("*"):
            prefixes[old[:-1]] = new[:-1]
            found = any(name.startswith(old[:-1]) for name in known)
        else:
            exact[old] = new
            found = old in known
        if not found:
            raise ValueError(unknown_name("parameter", old, known).args[0])

    def new_name(name: str) -> str:
        if name in exact:
            return exact[name]
        fitting = [prefix for prefix in prefixes if name.startswith(prefix)]
        if not fitting:
            return name
        longest = max(fitting, key=len)
        return prefixes[longest] + name[len(longest) :]

    return new_name
