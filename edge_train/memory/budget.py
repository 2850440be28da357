"""Amounts of memory as users write them."""

from __future__ import annotations

import re

_UNITS = {
    **{"": 1, "B": 1, "K": 10**3, "KB": 10**3, "KIB": 2**10},
    **{"M": 10**6, "MB": 10**6, "MIB": 2**20, "G": 10**9, "GB": 10**9, "GIB": 2**30},
}
_AMOUNT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def parse_budget(budget: str | int) -> int:
    """Bytes of "200MB", "1.5 GiB", "160000 kB" or a number of bytes.

    Raises TypeError for another type, ValueError for other words and for 0.
    """
    if isinstance(budget, bool) or not isinstance(budget, (str, int)):
        raise TypeError(
            f"memory budget: expected a number of bytes or a text like '200MB', got {budget!r}"
        )
    match = _AMOUNT.fullmatch(str(budget))
    unit = None if match is None else _UNITS.get(match[2].upper())
    size = 0 if match is None or unit is None else int(float(match[1]) * unit)
    if size < 1:
        raise ValueError(
            f"memory budget '{budget}': expected an amount above 0 like '200MB', '160 MiB', "
            "'0.5GB', or a number of bytes"
        )
    return size


def shown(size: int) -> str:
    """Bytes for people: "73.0 MB" (10^6), as budgets are written."""
    return f"{size / 1e6:.1f} MB"
