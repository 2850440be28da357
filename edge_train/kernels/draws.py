"""The generator that our kernels draw the seeds of random masks from (native/draws.c).

One for the process, as onnxruntime's is: each Dropout that runs takes its next number. Until
somebody seeds it, it starts from the system's entropy.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any

from edge_train.errors import NativeError
from edge_train.kernels import native

#: a start that another thread makes at once would undo a seed that was set in between
_STARTING = Lock()


def set_seed(seed: int) -> None:
    """Starts the generator over at ``seed``, where there is a library for this machine."""
    path = native.library_path()
    if path is not None:
        # graphs run without our kernels then; a Module that needs them says what is wrong
        with suppress(NativeError):
            _started(path)(seed)


def start() -> None:
    """Has the generator started, at the latest before a kernel draws; NativeError for a library
    that cannot be loaded."""
    path = native.library_path()
    if path is not None:
        _started(path)


def _started(path: Path) -> Any:
    with _STARTING:
        return _seeding(path)


@lru_cache(maxsize=1)
def _seeding(path: Path) -> Any:
    """The library's et_set_seed, once called with a number that nobody chose."""
    try:
        function = ctypes.CDLL(str(path)).et_set_seed
    except (OSError, AttributeError) as error:
        raise NativeError(
            f"the native library {path} draws no random numbers ({error}); build it again with "
            "tools/build_kernels.py, or pass kernels='portable' to Module"
        ) from error
    function.argtypes, function.restype = [ctypes.c_int64], None
    function(int.from_bytes(os.urandom(8), "little", signed=True))
    return function
