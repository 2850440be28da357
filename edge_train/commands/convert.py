"""``edge-train convert``: a checkpoint into another form, one verb a form.

Each verb hands its words to a function of ``edge_train.convert``; none imports onnxruntime.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add_parser(commands: Any) -> None:
    """Adds the family to the parsers of ``edge-train``."""
    parser = commands.add_parser("convert", help="turn checkpoints into other forms and back")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    _add_rewrites(verbs)
    _add_arrays(verbs)


def _verb(verbs: Any, name: str, run: Any, text: str, *words: str) -> argparse.ArgumentParser:
    """A verb with paths as its positional words."""
    parser: argparse.ArgumentParser = verbs.add_parser(name, help=text, description=text)
    for word in words:
        parser.add_argument(word, type=Path, metavar=word.upper())
    parser.set_defaults(run=run)
    return parser


def _add_rewrites(verbs: Any) -> None:
    _verb(
        verbs,
        "upgrade",
        _upgrade,
        "a folder of a release before 1.16, as a file of today",
        "folder",
        "out",
    )
    strip = _verb(verbs, "strip", _strip, "leave the optimizer state out", "checkpoint", "out")
    strip.add_argument("--properties", action="store_true", help="leave the properties out too")
    rename = _verb(verbs, "rename", _rename, "rename parameters", "checkpoint", "out")
    rename.add_argument(
        "pairs", nargs="+", metavar="OLD=NEW", type=_pair, help="'module.*=*' cuts a prefix"
    )


def _add_arrays(verbs: Any) -> None:
    _verb(
        verbs,
        "to-safetensors",
        _to_safetensors,
        "a checkpoint as a safetensors file",
        "checkpoint",
        "out",
    )
    parser = _verb(
        verbs,
        "from-safetensors",
        _from_safetensors,
        "a safetensors file as a checkpoint",
        "file",
        "out",
    )
    _add_split(parser)


def _add_split(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--like", type=Path, metavar="CHECKPOINT", help="names and split as there")
    parser.add_argument(
        "--freeze", nargs="+", default=(), metavar="NAME", help="names or patterns not trained"
    )


def _pair(text: str) -> tuple[str, str]:
    old, separator, new = text.partition("=")
    if not (separator and old and new):
        raise argparse.ArgumentTypeError(f"expected OLD=NEW, got '{text}'")
    return old, new


def _upgrade(words: argparse.Namespace) -> int:
    from edge_train.convert.rewrite import rewrite

    rewrite(words.folder, words.out)
    return 0


def _strip(words: argparse.Namespace) -> int:
    from edge_train.convert.rewrite import rewrite

    rewrite(words.checkpoint, words.out, optimizer=False, properties=not words.properties)
    return 0


def _rename(words: argparse.Namespace) -> int:
    from edge_train.convert.rewrite import rename

    rename(words.checkpoint, words.out, dict(words.pairs))
    return 0


def _to_safetensors(words: argparse.Namespace) -> int:
    from edge_train.convert.safetensors import to_safetensors

    to_safetensors(words.checkpoint, words.out)
    return 0


def _from_safetensors(words: argparse.Namespace) -> int:
    from edge_train.convert.safetensors import from_safetensors

    from_safetensors(words.file, words.out, like=words.like, frozen=words.freeze)
    return 0
