"""The marker of a run under way: what is left of it when the process is killed.

The kernel's out-of-memory killer and Android's leave no Python error. The next start finds the
marker, unlocked, and says what happened.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge_train.errors import CheckpointError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Killed:
    """A run that ended without a word: ``rebooted`` since then, its last noted step and memory.

    ``peak`` is bytes of resident memory, 0 where unknown.
    """

    step: int
    peak: int
    rebooted: bool

    def __str__(self) -> str:
        if self.rebooted:
            return f"the device restarted in the middle of the last run, after step {self.step}"
        peak = f" (its peak was {self.peak / 2**20:.0f} MB)" if self.peak else ""
        return (
            f"the last run was killed, some time after step {self.step}, perhaps for its memory"
            f"{peak}. If it happens again, try a smaller batch or a memory budget"
        )


class Marker:
    """A small locked file at ``path``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.killed: Killed | None = None
        self._file: int | None = None

    def set(self, step: int = 0) -> None:
        """Takes the lock and reads what a killed run left; ``step`` is where this one goes on.

        CheckpointError if another process holds it, OSError from the disk.
        """
        descriptor = self._locked()
        try:
            self.killed = _read(descriptor)
            self._file = descriptor
            left = self.killed or Killed(0, 0, False)  # killed again, this is all that is known
            self._write({"step": max(left.step, step), "peak": left.peak})
            os.fsync(descriptor)
        except BaseException:
            os.close(descriptor)
            self._file = None
            raise

    def is_ours(self) -> bool:
        """Whether the file at the path is the one that this process holds.

        One that was removed, alone or with its folder, protects from no other process.
        """
        if self._file is None:
            return True
        try:
            return os.path.samestat(os.fstat(self._file), os.stat(self.path))
        except (FileNotFoundError, NotADirectoryError):
            return False

    def take_again(self) -> None:
        """Takes the lock on a file that is no longer ours; the errors are those of ``set``."""
        descriptor = self._locked()
        if self._file is not None:
            os.close(self._file)
        self._file = descriptor
        self._write({"step": 0, "peak": 0})

    def note(self, step: int, peak: int) -> None:
        """Keeps step and peak for the next start; not synced: a kill spares the page cache."""
        self._write({"step": step, "peak": peak})

    def clear(self) -> None:
        """Removes the marker: this run ends with a word."""
        if self._file is None:
            return
        ours = False
        with suppress(OSError):
            ours = self.is_ours()
        if fcntl is None:  # Windows removes no open file
            os.close(self._file)
        if ours:
            with suppress(OSError):
                os.unlink(self.path)
        if fcntl is not None:
            os.close(self._file)
        self._file = None

    def _locked(self) -> int:
        while True:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                self._lock(descriptor)
                # a run that ends removes the file: between our open and lock, maybe
                with suppress(FileNotFoundError):
                    if os.path.samestat(os.fstat(descriptor), os.stat(self.path)):
                        return descriptor
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def _lock(self, descriptor: int) -> None:
        if fcntl is None:
            return
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CheckpointError(
                f"another process trains in '{self.path.parent}' (it holds the lock on "
                f"'{self.path.name}'); stop it first, or choose another folder"
            ) from None
        except OSError:
            return  # a file system without locks

    def _write(self, fields: dict[str, Any]) -> None:
        if self._file is None:
            return
        text = json.dumps({**fields, "pid": os.getpid(), "boot": _boot()}).encode()
        os.lseek(self._file, 0, os.SEEK_SET)
        os.write(self._file, text)
        os.ftruncate(self._file, len(text))


def _boot() -> str:
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return ""


def _read(descriptor: int) -> Killed | None:
    os.lseek(descriptor, 0, os.SEEK_SET)
    data = os.read(descriptor, 4096)
    if not data:
        return None
    try:
        fields = json.loads(data)
        step, peak, boot = int(fields["step"]), int(fields["peak"]), str(fields["boot"])
    except (KeyError, TypeError, ValueError):
        return Killed(0, 0, False)
    now = _boot()
    return Killed(step, peak, bool(boot and now and boot != now))
