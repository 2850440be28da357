"""What the verbs of ``edge-train convert`` share."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from edge_train.printable import printable


def add_verb(
    verbs: Any, name: str, run: Callable[[argparse.Namespace], int], text: str, *words: str
) -> argparse.ArgumentParser:
    """Adds a verb with paths as its positional words."""
    parser: argparse.ArgumentParser = verbs.add_parser(name, help=text, description=text)
    for word in words:
        parser.add_argument(word, type=Path, metavar=word.upper())
    parser.set_defaults(run=run)
    return parser


def say(lines: Iterable[str]) -> int:
    """Prints lines; the exit code of a verb that is done."""
    for line in lines:
        print(printable(line))
    return 0
