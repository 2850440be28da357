"""The state before the last save: kept when asked for, named when the last one is broken."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from edge_train import atomic
from edge_train.checkpoint.source import Readable
from edge_train.errors import CheckpointCorrupt, CheckpointError

SUFFIX = ".previous"


def keep(path: str) -> None:
    """Lets the files of the checkpoint at ``path`` also be ``<path>.previous``, before a save.

    A second name for the same bytes where the file system has hard links (a save never changes
    them in place), else a copy. A symbolic link is followed to the bytes. Raises CheckpointError
    where neither can be made.
    """
    if not os.path.isfile(path):
        return
    for file, name in ((f"{path}.data", f"{path}{SUFFIX}.data"), (path, f"{path}{SUFFIX}")):
        if os.path.isfile(file):
            _second_name(file, name)


def _second_name(file: str, name: str) -> None:
    new = f"{name}.new"
    try:
        for taken in (new, name):
            atomic.refuse_special(taken)
        with suppress(FileNotFoundError):
            os.unlink(new)
        try:
            os.link(os.path.realpath(file), new)
        except OSError:  # FAT, Android's shared storage, a link to another file system
            import shutil  # here: it loads every kind of compression

            shutil.copyfile(file, new)
        os.replace(new, name)
        with suppress(FileNotFoundError):
            os.unlink(new)  # still there where both were names of the same bytes before
    except OSError as error:
        raise CheckpointError(
            f"'{file}' cannot be kept as '{name}': {error.strerror or error}; the state saved "
            "before is still there"
        ) from error


@contextmanager
def named_when_broken(readable: Readable) -> Iterator[None]:
    """Adds to the error of a broken checkpoint where the state before it can be found."""
    try:
        yield
    except CheckpointCorrupt as error:
        if not isinstance(readable, (str, os.PathLike)):
            raise
        before = f"{os.fsdecode(readable)}{SUFFIX}"
        if not os.path.isfile(before):
            raise
        text = f"{error}; the state saved before it is in '{before}': load that one"
        raise CheckpointCorrupt(text) from error
