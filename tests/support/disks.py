"""Disks that refuse."""

from __future__ import annotations

import errno
import os

import pytest

from edge_train import atomic


class FullDisk:
    """Lets every write of a state fail from the moment ``full`` is set."""

    full = False

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        before = os.fsync

        def fsync(descriptor: int) -> None:
            if self.full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            before(descriptor)

        monkeypatch.setattr(atomic.os, "fsync", fsync)
