"""``edge-train estimate``: what training takes, before anything runs."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from edge_train.commands import verbs
from edge_train.commands.printing import complain

_EXAMPLES = """\
examples:
  edge-train estimate artifacts/ --batch 32
      weights, gradients, moments, activations and runtime of a step of 32 rows
  edge-train estimate artifacts/ --batch 32 --budget 200MB
      how to train on 32 rows within 200 MB: micro-batches, options, or what would fit
  edge-train estimate artifacts/ --batch 8 --size tokens=128 --train 'head.*' --json
      another free size of the model, part of the parameters, for programs

All amounts are above an idle process that has Python, NumPy and onnxruntime loaded (about 50 MB).
exit codes: 0 shown or fits, 1 does not fit into the budget, 2 files or words that cannot be used
"""


def add_parser(commands: Any) -> None:
    """Adds the subcommand to the parsers of ``edge-train``."""
    parser = commands.add_parser(
        "estimate",
        help="tell how much memory training will take, and how to fit a budget",
        description="Tell the memory of training by what it is for, without training.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("artifacts", type=Path, metavar="DIR", help="training artifacts")
    parser.add_argument("--batch", type=int, default=1, metavar="ROWS", help="of an update (1)")
    parser.add_argument("--budget", metavar="SIZE", help="like 200MB, 160MiB, 0.5GB")
    several = {"nargs": "+", "action": "extend"}
    parser.add_argument("--train", **several, metavar="NAME", help="parameters or patterns (all)")
    parser.add_argument(
        "--size", **several, type=_size, metavar="NAME=N", help="a free size of the model's inputs"
    )
    parser.add_argument("--kernels", choices=("auto", "portable", "fused"), default="auto")
    parser.add_argument("--recompute", choices=("none", "auto"), default="none", help="(none)")
    parser.add_argument("--fuse-optimizer", action="store_true", help="updates while a step runs")
    parser.add_argument("--moments", choices=("float32", "8bit"), default="float32")
    parser.add_argument("--json", action="store_true", help="machine-readable output")
    parser.set_defaults(run=_run)


def _size(text: str) -> tuple[str, int]:
    name, _, number = text.partition("=")
    if not (name and number.isdecimal() and int(number) >= 1):
        raise argparse.ArgumentTypeError(f"expected NAME=NUMBER, got '{text}'")
    return name, int(number)


def _run(arguments: argparse.Namespace) -> int:
    from edge_train import memory
    from edge_train.errors import MemoryBudgetExceeded

    words: dict[str, Any] = {
        "trainable": arguments.train,
        "kernels": arguments.kernels,
        "recompute": arguments.recompute,
        "fuse_optimizer": arguments.fuse_optimizer,
        "moments": arguments.moments,
        "sizes": dict(arguments.size or ()),
    }
    if arguments.budget is None:
        estimate = memory.estimate(arguments.artifacts, arguments.batch, **words)
        print(json.dumps(estimate.as_dict(), indent=1) if arguments.json else estimate.table())
        return 0
    try:
        plan = memory.plan(arguments.artifacts, arguments.batch, arguments.budget, **words)
    except MemoryBudgetExceeded as refused:
        if arguments.json:
            print(json.dumps({"fits": False, "reason": str(refused)}, indent=1))
        else:
            complain(f"edge-train: {refused}")
        return 1
    if arguments.json:
        print(json.dumps({"fits": True, **plan.as_dict()}, indent=1))
        return 0
    return verbs.say(plan.text().split("\n"))
