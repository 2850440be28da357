"""Chooses the kernel backend: the environment variable EDGE_TRAIN_KERNELS, or the best there is."""

from __future__ import annotations

import os
from collections.abc import Callable

from edge_train.kernels import blocks, jit, reference
from edge_train.kernels.contract import Steps

VARIABLE = "EDGE_TRAIN_KERNELS"

# "auto" is the NumPy backend: Numba costs memory and start-up time, so it is for the asking.
_BACKENDS: dict[str, Callable[[], Steps]] = {
    "auto": blocks.build,
    "numpy": blocks.build,
    "numba": jit.build,
    "reference": lambda: reference.STEPS,
}
CHOICES = tuple(_BACKENDS)


def select(name: str | None = None) -> Steps:
    """The backend called ``name``, or by EDGE_TRAIN_KERNELS, or "auto".

    One of "auto", "numpy", "numba", "reference"; ValueError for any other, ImportError for "numba"
    where Numba is not installed.
    """
    asked = name if name is not None else os.environ.get(VARIABLE) or "auto"
    if asked not in _BACKENDS:
        choices = ", ".join(CHOICES)
        raise ValueError(f"{VARIABLE} is '{asked}'; it must be one of {choices}")
    return _BACKENDS[asked]()
