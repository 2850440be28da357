"""What a command says, where the words may find nobody: a full disk, a closed pipe or terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import TextIO

from edge_train.printable import printable


def complain(text: str) -> None:
    """Lines on stderr; what cannot be written changes nothing."""
    try:
        print("\n".join(map(printable, text.split("\n"))), file=sys.stderr, flush=True)
    except OSError:
        silence(sys.stderr)


def offer(lines: Iterable[str]) -> None:
    """Lines on stdout, for a command whose result is elsewhere: what cannot be written is left.

    What was printed before too: the interpreter would put its own exit code for ours at its end.
    """
    try:
        for line in lines:
            print(printable(line))
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        silence(sys.stdout)


def silence(stream: TextIO | None) -> None:
    """Lets what the stream still holds go nowhere, so that no later flush fails of it."""
    if stream is None:
        return
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
