"""``edge-train doctor``: can this machine train, and what a bug report needs to say about it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from edge_train.printable import printable

_EXAMPLES = """\
examples:
  edge-train doctor
      versions, processor, memory, folders, kernels, one training step
  edge-train doctor --folder /mnt/card/runs
      can runs be saved there, too
  edge-train doctor --json > doctor.json
      the same for programs

exit codes: 0 training works here, 1 a check failed, 2 wrong words
"""


def add_parser(commands: Any) -> None:
    """Adds the subcommand to the parsers of ``edge-train``."""
    parser = commands.add_parser(
        "doctor",
        help="examine this machine; paste its output into a bug report",
        description="Examine this machine: PASS works, WARN works with a drawback, FAIL does not.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--folder",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="a folder that runs are to be saved in (repeatable)",
    )
    parser.add_argument("--json", action="store_true", help="machine-readable output")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from edge_train import doctor

    host = doctor.Host(folders=tuple(arguments.folder))
    found: list[tuple[str, doctor.Check]] = []
    for group, check in doctor.examine(host):
        if not arguments.json:
            if not found or found[-1][0] != group:
                print(f"{group}")
            _print(check)
        found.append((group, check))
    failed = doctor.failed(check for _, check in found)
    if arguments.json:
        _print_json(found, failed)
    else:
        print(f"\n{'FAIL: training does not work here' if failed else 'PASS: training works here'}")
    return int(failed)


def _print(check: Any) -> None:
    print(printable(f"  {check.outcome.value}  {check.name}: {check.text}"), flush=True)
    if check.remedy:
        print(printable(f"        -> {check.remedy}"))


def _print_json(found: list[tuple[str, Any]], failed: bool) -> None:
    checks = [
        {
            "group": group,
            "name": check.name,
            "outcome": check.outcome.value,
            "text": check.text,
            "remedy": check.remedy,
        }
        for group, check in found
    ]
    print(json.dumps({"passed": not failed, "checks": checks}, indent=1))
