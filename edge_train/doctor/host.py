"""The machine under examination; tests put a fake one together from folders and a fake Python."""

from __future__ import annotations

import os
import platform
import signal
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from mmap import PAGESIZE
from pathlib import Path

#: a board that swaps needs a while to load onnxruntime
_CHILD_SECONDS = 180.0


@dataclass(frozen=True)
class Ended:
    """How a child process ended; ``signal`` is the name of what killed it, "" otherwise."""

    code: int
    out: str
    err: str
    signal: str = ""


@dataclass(frozen=True)
class Host:
    """Where the files, the interpreter and the packages are looked for."""

    root: Path = Path("/")
    machine: str = field(default_factory=platform.machine)
    pointer_bits: int = 8 * struct.calcsize("P")
    page_size: int = PAGESIZE
    python: str = field(default_factory=lambda: sys.executable or "python3")
    system: str = sys.platform
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    folders: tuple[Path, ...] = ()

    @property
    def is_termux(self) -> bool:
        """Whether this is Termux on Android (Python before 3.13 calls itself linux there)."""
        return "TERMUX_VERSION" in self.environ or self.system == "android"

    def read(self, path: str) -> str | OSError:
        """A file's text below ``root``, or why it cannot be read."""
        try:
            return (self.root / path).read_text(encoding="utf-8", errors="replace").strip("\0\n ")
        except OSError as error:
            return error

    def text(self, path: str) -> str:
        """A file's text, "" where it cannot be read."""
        told = self.read(path)
        return "" if isinstance(told, OSError) else told

    def run(self, words: Sequence[str], timeout: float = _CHILD_SECONDS) -> Ended:
        """Runs this Python with ``words``."""
        try:
            done = subprocess.run(
                [self.python, *words],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout,
                check=False,
                env=dict(self.environ),
            )
        except subprocess.TimeoutExpired:
            return Ended(124, "", f"no answer within {timeout:g} s")
        except OSError as error:
            return Ended(127, "", f"{self.python} cannot be started: {error}")
        return Ended(done.returncode, done.stdout, done.stderr, _signal_of(done.returncode))


def _signal_of(code: int) -> str:
    """Emulators and shells tell of a signal as 128 plus its number."""
    number = -code if code < 0 else code - 128
    if not (code < 0 or 128 < code < 160):
        return ""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
