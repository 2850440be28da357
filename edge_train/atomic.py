"""Replace a file so that its reader sees the old bytes or the new ones, also after a power cut.

Everything that edge_train saves goes through ``replacing``: temporary file in the same folder,
flush, fsync, rename over the target, fsync of the folder.
"""

from __future__ import annotations

import errno
import glob
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

# what a write answers for want of room or leave: no file's name goes with it
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
# what a file system without fsync of folders answers (FUSE, Android's shared storage)
_NO_FOLDER_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EPERM, errno.EBADF)
# of a temporary file's name: with what is added it fits wherever the target's own name may fit
_LONGEST_STEM = 100
_SPECIAL = (
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
)


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A binary file to write; leaving the block puts it in the place of ``path``.

    An exception in the block (or on the way to the disk) leaves ``path`` as it was and removes the
    temporary file. A missing folder is created, a symbolic link is followed, the permissions of
    an existing file are kept. Raises what ``refuse_special`` raises, before anything is written,
    and OSError from the disk, with ``path`` as its file name.
    """
    refuse_special(path)
    target = os.path.realpath(os.fspath(path))
    os.makedirs(os.path.dirname(target), exist_ok=True)
    remove_abandoned(os.path.dirname(target), glob.escape(_stem(os.path.basename(target))))
    try:
        temporary, file = _create(target)
    except OSError as error:
        error.filename = target
        raise
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            _keep_mode(target, temporary)
            # renamed while open and locked, so that no other process takes it for abandoned
            if fcntl is not None:
                os.replace(temporary, target)
        if fcntl is None:
            os.replace(temporary, target)
    except BaseException as error:
        with suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, OSError) and error.errno in _NO_ROOM and error.filename is None:
            error.filename = target
        raise
    sync_folder(os.path.dirname(target))


def refuse_special(path: str | os.PathLike[str]) -> None:
    """Raises where a save would take the place of something else than a regular file.

    IsADirectoryError for a folder, OSError (EINVAL) for a pipe, a socket or a device, OSError for a
    name that the file system refuses, FileNotFoundError for an empty one, TypeError for a number; a
    symbolic link counts as what it leads to.
    """
    name = os.fspath(path)
    if not name:
        raise FileNotFoundError(errno.ENOENT, "is empty, expected a file name", name)
    target = os.path.realpath(name)
    for place in (name, target):  # /dev/stdout has no path of its own, "pipe/" is no name
        try:
            _refuse_mode(os.stat(place).st_mode, target)
        except (FileNotFoundError, NotADirectoryError):
            continue


def _refuse_mode(mode: int, target: str) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "is a folder, expected a file name", target)
    if not stat.S_ISREG(mode):
        kind = next((words for check, words in _SPECIAL if check(mode)), "no regular file")
        text = f"is {kind}, expected a regular file or a new name; save under another name"
        raise OSError(errno.EINVAL, text, target)


def sync_folder(folder: str) -> None:
    """Write a folder's entries to the disk, where the system can do that (Linux, Android)."""
    if sys.platform not in ("linux", "android"):
        return
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return  # a folder that may be written to but not listed
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise
    finally:
        os.close(descriptor)


def _create(target: str) -> tuple[str, BinaryIO]:
    folder, name = os.path.split(target)
    while True:
        temporary = os.path.join(folder, f".{_stem(name)}.{os.urandom(6).hex()}.tmp")
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        descriptor = os.open(temporary, flags, 0o666)
        file = os.fdopen(descriptor, "wb")
        if _lock(descriptor) and os.path.exists(temporary):
            return temporary, file
        file.close()  # another save cleaned it away between open and lock


def _stem(name: str) -> str:
    """``name``, or of a long one the beginning and a hash of all of it."""
    whole = os.fsencode(name)
    if len(whole) <= _LONGEST_STEM:
        return name
    import hashlib  # here: the OpenSSL behind it takes megabytes, and few names are long

    digest = hashlib.blake2b(whole, digest_size=8).hexdigest()
    # cut between characters: some file systems take whole UTF-8 only
    beginning = whole[: _LONGEST_STEM - len(digest) - 1].decode("utf-8", "ignore")
    return f"{beginning}~{digest}"


def _lock(descriptor: int) -> bool:
    if fcntl is None:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # a file system without locks
    return True


def remove_abandoned(folder: str | os.PathLike[str], name: str = "*") -> None:
    """Remove what killed saves of files ``name`` (a pattern) left in ``folder``.

    These are temporary files that nobody holds a lock on any more.
    """
    if fcntl is None:
        return
    for path in glob.glob(os.path.join(glob.escape(os.fspath(folder)), f".{name}.*.tmp")):
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDWR)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(path)
            finally:
                os.close(descriptor)


def _keep_mode(target: str, temporary: str) -> None:
    with suppress(OSError):
        os.chmod(temporary, os.stat(target).st_mode & 0o7777)
