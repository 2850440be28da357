"""Names and shell patterns, as everything that takes a list of names reads them."""

from __future__ import annotations

from collections.abc import Collection
from fnmatch import fnmatchcase


def matching(pattern: str, names: Collection[str]) -> list[str]:
    """The ``names`` that a name or shell pattern means, in their order.

    A name that contains pattern characters means itself: "W[0]" is W0 only where no name is
    "W[0]".
    """
    return [pattern] if pattern in names else [n for n in names if fnmatchcase(n, pattern)]
