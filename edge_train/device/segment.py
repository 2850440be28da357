"""A segment of shared memory: its header, its table of parameters, and how others find it.

Layout, numbers little-endian::

    0  magic "ETSHARE1"     8  sequence u32 (odd: being written)   12  hold u32 (see below)
    16 data offset u64     24  data bytes u64                      32  table bytes u32
    36 writer's pid u32    40  ready u32 (1: has values, 2: ended) 44  token u32
    4096 the table, JSON: name, dtype, shape, offset, trainable of each parameter

The sequence is a seqlock: the writer adds 1 before and after each change; who reads the same even
number before and after has read one version. ``hold`` is a wish of a reader that is overtaken again
and again: until that time (monotonic, in ms) the writer waits before its next change, but never
longer than HOLD_MS. It is a courtesy: what is right is decided by the sequence alone.

The memory is a memfd, found through /proc/PID/fd, or a file (in /dev/shm where that is there)
where memfd or /proc is missing. The file NAME.json in a folder that belongs to the user alone says
which.
"""

from __future__ import annotations

import json
import os
import stat
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edge_train.device import native
from edge_train.errors import NativeError

MAGIC = np.frombuffer(b"ETSHARE1", np.uint8)
TABLE_AT = 4096
UNIT = 65536  # data begin on a multiple of every page size in use
HOLD_MS = 100
READY, ENDED = 1, 2
FOLDER_VARIABLE = "EDGE_TRAIN_SHM"

_SEQUENCE, _HOLD, _TABLE_BYTES, _PID, _READY, _TOKEN = 2, 3, 8, 9, 10, 11  # of u32
_DATA_AT, _DATA_BYTES = 2, 3  # of u64
_WORD = 0xFFFFFFFF


class Header:
    """The first page of a segment; every field is one aligned word."""

    def __init__(self, page: np.ndarray) -> None:
        self._bytes = page
        self._words = page[:48].view("<u4")
        self._wide = page[:48].view("<u8")

    @property
    def valid(self) -> bool:
        """Whether this is a segment at all."""
        return bool((self._bytes[:8] == MAGIC).all())

    @property
    def sequence(self) -> int:
        """Odd while the writer is at work; its half is the version."""
        return int(self._words[_SEQUENCE])

    @property
    def pid(self) -> int:
        """The writer's process."""
        return int(self._words[_PID])

    @property
    def token(self) -> int:
        """A random number that tells this segment from another in its place."""
        return int(self._words[_TOKEN])

    @property
    def ready(self) -> int:
        """0 before there are values, READY, or ENDED when the writer made another segment."""
        return int(self._words[_READY])

    @ready.setter
    def ready(self, value: int) -> None:
        fence()
        self._words[_READY] = value

    @property
    def extent(self) -> tuple[int, int]:
        """Offset and bytes of the data."""
        return int(self._wide[_DATA_AT]), int(self._wide[_DATA_BYTES])

    @property
    def table_bytes(self) -> int:
        """Length of the table."""
        return int(self._words[_TABLE_BYTES])

    def begin(self) -> None:
        """The writer's: from now on the values change. Waits for a reader that asked for it."""
        self._wait_for_readers()
        self._words[_SEQUENCE] = (self.sequence + 1) & _WORD
        fence()

    def end(self) -> None:
        """The writer's: the values are whole again, and a new version."""
        fence()
        self._words[_SEQUENCE] = (self.sequence + 1) & _WORD

    def hold(self, milliseconds: int) -> int:
        """A reader's wish to be let through; returns what ``release`` takes."""
        wish = (_now() + milliseconds) & _WORD
        self._words[_HOLD] = wish
        fence()
        return wish

    def release(self, wish: int) -> None:
        """Takes a wish back, unless another reader has one by now."""
        if wish and int(self._words[_HOLD]) == wish:
            self._words[_HOLD] = 0

    def _wait_for_readers(self) -> None:
        start = _now()
        while (_now() - start) & _WORD < HOLD_MS:  # whatever readers go on to wish
            until = int(self._words[_HOLD])
            left = (until - _now()) & _WORD
            if not until or not 0 < left <= HOLD_MS:
                return
            time.sleep(0.0002)

    def lay_out(self, table: bytes, data_at: int, data_bytes: int) -> None:
        """The writer's first act."""
        self._words[_TABLE_BYTES] = len(table)
        self._words[_PID] = os.getpid()
        self._words[_TOKEN] = int.from_bytes(os.urandom(4), "little")
        self._wide[_DATA_AT], self._wide[_DATA_BYTES] = data_at, data_bytes
        self._bytes[:8] = MAGIC


def _now() -> int:
    return int(time.monotonic() * 1000) & _WORD


_pair = threading.Lock()


def _python_fence() -> None:
    # A lock is released with a release and taken with an acquire; two pairs in a row order all
    # accesses before them and after them on every processor that there is (x86-64, ARM).
    for _ in range(2):
        with _pair:
            pass


def fence() -> None:
    """Orders all memory accesses before it and after it."""
    api = native.library()
    if api is None:
        _python_fence()
    else:
        api.fence()


# ---- where a segment is found ---------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """How a process finds a segment: a descriptor of another process, or a path."""

    pid: int
    token: int
    descriptor: int = -1
    path: str = ""

    @property
    def file(self) -> str:
        """What to open."""
        return self.path or f"/proc/{self.pid}/fd/{self.descriptor}"

    @property
    def alive(self) -> bool:
        """Whether the writer's process is there, and has its descriptor."""
        return is_alive(self.pid) and (bool(self.path) or os.path.exists(self.file))


def is_alive(pid: int) -> bool:
    """Whether there is such a process, and more than what its parent has not asked for yet."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # someone else's
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state = file.read().rpartition(b")")[2].split()[0]  # behind a name of any bytes
    except (OSError, IndexError):  # no /proc that can be read
        return True
    return state not in (b"Z", b"X")


def folder() -> Path:
    """The user's own folder of NAME.json files; NativeError where it belongs to someone else.

    In the folder that EDGE_TRAIN_SHM names, or that of temporary files.
    """
    user = os.getuid() if hasattr(os, "getuid") else 0
    asked = os.environ.get(FOLDER_VARIABLE)
    own = Path(tempfile.gettempdir()) / f"edge_train-{user}"
    path = Path(asked).absolute() if asked else own  # a reader's working folder is another
    path.mkdir(mode=0o700, parents=bool(asked), exist_ok=True)
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != user or found.st_mode & 0o022:
        raise NativeError(
            f"the folder '{path}' for shared memory must be yours alone (mode 700); remove it, or "
            f"name another in {FOLDER_VARIABLE}"
        )
    return path


def announce(name: str, place: Place) -> Path:
    """Lets others find the segment; returns the file that says so."""
    target = folder() / f"{name}.json"
    temporary = target.with_name(f".{name}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(place.__dict__), encoding="utf-8")
    os.replace(temporary, target)
    return target


def look_up(name: str) -> Place | None:
    """Where the segment ``name`` is, None where nobody announced one."""
    try:
        fields: Any = json.loads((folder() / f"{name}.json").read_text(encoding="utf-8"))
        return Place(
            int(fields["pid"]),
            int(fields["token"]),
            int(fields["descriptor"]),
            str(fields["path"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def create_file(name: str, size: int, backing: str) -> tuple[int, str]:
    """An open file of ``size`` bytes, and its path ("" for a memfd).

    ``backing``: "memfd", "file", or "auto": memfd where it can be had and found.
    """
    makers: dict[str, list[Callable[[str], tuple[int, str]]]] = {
        "auto": [_memfd, _file],
        "memfd": [_memfd],
        "file": [_file],
    }
    if backing not in makers:
        raise ValueError(f"backing '{backing}': expected one of {list(makers)}")
    problems = []
    for make in makers[backing]:
        try:
            number, path = make(name)
        except (OSError, AttributeError) as error:
            problems.append(str(error))
            continue
        try:
            os.ftruncate(number, size)
            if path and hasattr(os, "posix_fallocate"):
                os.posix_fallocate(number, 0, size)  # a full file system would be a bus error
        except OSError as error:
            os.close(number)
            if path:
                os.unlink(path)
            problems.append(f"{size} bytes: {error}")
            continue
        return number, path
    raise NativeError(f"no shared memory can be had for '{name}': {'; '.join(problems)}")


def _memfd(name: str) -> tuple[int, str]:
    if not os.path.exists("/proc/self/fd"):
        raise FileNotFoundError("no /proc/self/fd")
    return os.memfd_create(f"edge_train-{name}"), ""


def _file(name: str) -> tuple[int, str]:
    memory = Path("/dev/shm")
    place = memory if os.access(memory, os.W_OK | os.X_OK) else folder()
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
    path = place / f"edge_train-{os.getuid()}-{name}-{os.getpid()}-{os.urandom(3).hex()}"
    return os.open(path, flags, 0o600), str(path)
