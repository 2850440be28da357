"""Chooses the kernel backend: the environment variable EDGE_TRAIN_KERNELS, or the best there is."""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Callable
from functools import lru_cache

from edge_train.errors import NativeError
from edge_train.kernels import blocks, jit, native, reference
from edge_train.kernels.contract import Steps

VARIABLE = "EDGE_TRAIN_KERNELS"
_log = logging.getLogger("edge_train")


def _best() -> Steps:
    """The native library where there is one; Numba costs memory and start-up time: on request."""
    if native.library_path():
        return native.build()
    _tell_once()
    return blocks.build()


@lru_cache(maxsize=1)
def _tell_once() -> None:
    _log.info(
        "no native library for %s in %s: standard ops and NumPy train, with the same numbers but "
        "slower; the wheel has one, in a checkout tools/build_kernels.py makes it",
        platform.machine(),
        native.FOLDER,
    )


_BACKENDS: dict[str, Callable[[], Steps]] = {
    "auto": _best,
    "native": native.build,
    "numpy": blocks.build,
    "numba": jit.build,
    "reference": lambda: reference.STEPS,
}
CHOICES = tuple(_BACKENDS)


GRAPHS = ("auto", "portable", "fused")


def fuses_graphs(asked: str = "auto") -> bool:
    """Whether graphs are lowered to the fused ops of the native library.

    "portable" and "fused" decide; "auto" fuses where the library is and EDGE_TRAIN_KERNELS does
    not ask for another backend than the native one.

    Errors: ValueError for any other word, NativeError for "fused" where there is no library.
    """
    if asked not in GRAPHS:
        raise ValueError(f"kernels: expected one of {', '.join(GRAPHS)}, got {asked!r}")
    if asked == "fused" and not native.has_ops():
        raise NativeError(native.missing())
    by_variable = (os.environ.get(VARIABLE) or "auto") in ("auto", "native")
    return asked == "fused" or (asked == "auto" and by_variable and native.has_ops())


def select(name: str | None = None) -> Steps:
    """The backend called ``name``, or by EDGE_TRAIN_KERNELS, or "auto".

    One of "auto", "native", "numpy", "numba", "reference"; ValueError for any other, ImportError
    for "numba" where Numba is not installed, NativeError for "native" where there is no library.
    """
    asked = name if name is not None else os.environ.get(VARIABLE) or "auto"
    if asked not in _BACKENDS:
        choices = ", ".join(CHOICES)
        raise ValueError(f"{VARIABLE} is '{asked}'; it must be one of {choices}")
    return _BACKENDS[asked]()
