"""``edge-train eval``: loss and metrics of a run's weights, or of any checkpoint."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from pathlib import Path
from typing import Any

from edge_train.commands.printing import complain
from edge_train.commands.train import add_flags, overrides
from edge_train.printable import printable

_EXAMPLES = """\
examples:
  edge-train eval run.toml
      the best weights of the run on its evaluation data
  edge-train eval run.toml --weights artifacts/checkpoint --metrics accuracy,top5,f1
      other weights, other metrics
  edge-train eval --artifacts artifacts --folder run --evaluation test.npz --json
      without a run file

exit codes: 0 evaluated, 1 over the file's memory budget, 2 a mistake in the file or the flags, or
an unusable file
"""
_OWN = ("--artifacts", "--folder", "--data", "--evaluation", "--batch-size", "--metrics")


def add_parser(commands: Any) -> None:
    """Adds the subcommand to the parsers of ``edge-train``."""
    parser = commands.add_parser(
        "eval",
        help="loss and metrics of a run's best weights, or of a checkpoint",
        description="Evaluate with the eval graph of the artifacts.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", type=Path, nargs="?", metavar="RUN.toml", help="the run file")
    parser.add_argument(
        "--weights", type=Path, metavar="FILE", help="a checkpoint (the run's best, else newest)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    add_flags(parser, _OWN)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from edge_train.runfile.assembly import evaluator_of
    from edge_train.runfile.reading import read
    from edge_train.training.checks import evaluation_notes
    from edge_train.training.run_folder import weights_in

    options = read(arguments.file, overrides(arguments))
    weights = arguments.weights or options.checkpoint
    if arguments.weights is None and options.folder is not None:
        if not options.folder.is_dir():
            raise ValueError(
                f"there is no run in '{options.folder}': train first, or name a checkpoint "
                "(--weights)"
            )
        weights = weights_in(options.folder)
    if weights is None and options.artifacts is not None:
        weights = options.artifacts / f"{options.prefix}checkpoint"
    evaluator = evaluator_of(dataclasses.replace(options, checkpoint=weights))
    found = evaluator.run()
    for note in evaluation_notes(evaluator):
        complain(f"edge-train: {note}")
    if arguments.json:
        numbers = {name: value if math.isfinite(value) else None for name, value in found.items()}
        print(json.dumps({"weights": None if weights is None else str(weights), **numbers}))
        return 0
    if weights is not None:
        print(printable(f"{'weights':>20}  {weights}"))
    for name, value in found.items():
        print(printable(f"{name:>20}  {value:.6g}"))
    return 0
