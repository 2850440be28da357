"""Text of files that anyone may have made, for a terminal: names hold any character."""

from __future__ import annotations


def printable(text: object) -> str:
    """``text`` without line ends, escape codes and other controls: as Python writes them."""
    words = str(text)
    if words.isprintable():
        return words
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in words)
