"""What this process uses, and the states of Python's and NumPy's global random numbers."""

from __future__ import annotations

import os
import random
from typing import Any

import numpy as np

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]


def resident_bytes() -> int | None:
    """Resident memory now; None where the system does not say."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def peak_bytes() -> int:
    """The largest resident memory so far; 0 where the system does not say."""
    if resource is None:
        return 0
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * 1024


def random_state() -> dict[str, Any]:
    """The generators behind ``random`` and ``np.random``, which a user's dataset may draw from."""
    version, numbers, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state()
    numpy_state = [
        str(kind),
        np.asarray(keys).tolist(),
        int(position),
        int(has_gauss),
        float(cached),
    ]
    return {"python": [version, list(numbers), gauss], "numpy": numpy_state}


def restore_random_state(state: dict[str, Any]) -> None:
    """Takes over what ``random_state`` gave."""
    if not state:
        return
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    kind, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((kind, np.array(keys, np.uint32), position, has_gauss, cached))
