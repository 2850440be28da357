"""Verbs of ``edge-train convert`` that take several checkpoints."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from edge_train.commands.places import refuse_inputs
from edge_train.commands.verbs import add_verb, say

_SHOWN = 40


def add_verbs(verbs: Any) -> None:
    """Adds the verbs to the parsers of the family."""
    text = "what differs between two checkpoints; exit code 1 if anything"
    diff = add_verb(verbs, "diff", _diff, text, "a", "b")
    diff.add_argument("--tolerance", type=float, default=0.0, help="differences that count not (0)")
    text = "copy what fits by name and shape into another model's checkpoint, say what does not"
    transfer = add_verb(verbs, "transfer", _transfer, text, "source", "target", "out")
    transfer.add_argument("--keep-optimizer", action="store_true", help="the target's state too")
    merge = add_verb(verbs, "merge", _merge, "several checkpoints as one, of all their parameters")
    merge.add_argument("--prefer", choices=("first", "last"), help="whose value is taken")
    merge.add_argument("--no-optimizer", action="store_true", help="without optimizer state")
    text = "the weighted average of checkpoints of one model"
    average = add_verb(verbs, "average", _average, text)
    average.add_argument("--weights", nargs="+", type=float, metavar="W", help="one each (equal)")
    text = "frozen tensors (BatchNorm's statistics) as in the first"
    average.add_argument("--keep-statistics", action="store_true", help=text)
    text = "a training or eval graph: checkpoints with a variance below 0 are refused"
    average.add_argument("--model", type=Path, metavar="MODEL", help=text)
    for parser in (merge, average):
        parser.add_argument("checkpoints", nargs="+", type=Path, metavar="CHECKPOINT")
        parser.add_argument("--out", type=Path, required=True, metavar="OUT")


def _diff(words: argparse.Namespace) -> int:
    from edge_train.convert.difference import compare

    found = compare(words.a, words.b, words.tolerance)
    lines = [f"only in a: {name}" for name in found.only_a]
    lines += [f"only in b: {name}" for name in found.only_b]
    lines += found.other
    for one in sorted(found.values, key=lambda one: -one.largest):
        lines.append(f"{one.name}: {one.elements} of {one.of} differ, by {one.largest:.3g} at most")
    say(lines[:_SHOWN])
    if len(lines) > _SHOWN:
        print(f"... and {len(lines) - _SHOWN} more")
    if found.equal:
        print("equal")
    return 0 if found.equal else 1


def _transfer(words: argparse.Namespace) -> int:
    from edge_train.convert.combine import transfer

    done = transfer(words.source, words.target, words.out, optimizer=words.keep_optimizer)
    print(f"copied: {len(done.copied)} of {len(done.copied + done.missing + done.misfits)}")
    say(f"kept: {sentence}" for sentence in done.misfits)
    say(f"kept: '{name}' is not in the source" for name in done.missing)
    return say(f"not used: '{name}' is not in the target" for name in done.unused)


def _merge(words: argparse.Namespace) -> int:
    from edge_train.convert.combine import merge

    optimizer = not words.no_optimizer
    merge(words.checkpoints, words.out, prefer=words.prefer, optimizer=optimizer)
    return 0


def _average(words: argparse.Namespace) -> int:
    from edge_train.convert.average import average

    if words.model is not None:
        refuse_inputs(words.out, words.model)
    statistics: Any = "keep" if words.keep_statistics else "average"
    options = {"weights": words.weights, "statistics": statistics, "model": words.model}
    average(words.checkpoints, words.out, **options)
    return 0
