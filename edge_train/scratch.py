"""A file for a moment, for interfaces that only write to a path."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def scratch_file() -> Iterator[str]:
    """A path to write to: in memory where the system has that, else in a temporary folder."""
    handle = _memory_file()
    if handle is not None:
        try:
            yield f"/proc/self/fd/{handle}"
        finally:
            os.close(handle)
        return
    import tempfile  # here: with it come archives and random numbers

    with tempfile.TemporaryDirectory() as folder:
        yield os.path.join(folder, "graph.onnx")


def _memory_file() -> int | None:
    """A file in memory that can be opened by its path, which Android may refuse."""
    if not hasattr(os, "memfd_create"):
        return None
    handle = -1
    try:
        handle = os.memfd_create("edge_train")
        with open(f"/proc/self/fd/{handle}", "wb"):
            return handle
    except OSError:
        if handle >= 0:
            os.close(handle)
        return None
