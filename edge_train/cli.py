"""The command ``edge-train``: parses the words and hands them to the package.

Exit codes: 0 done, 1 the run did not reach its goal or does not fit into its memory budget, 2 the
user's mistake or an unusable file, 74 the state of a run could not be written, 75 stopped and
resumable, 130 Ctrl-C elsewhere.
"""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Sequence
from pathlib import Path

from edge_train import __version__
from edge_train.commands import artifacts, convert, doctor, estimate, export, inspect, report, train
from edge_train.commands import eval as evaluate
from edge_train.commands.printing import complain, offer, silence
from edge_train.errors import EdgeTrainError, MemoryBudgetExceeded
from edge_train.printable import printable

_MOST_LISTED = 12


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="edge-train", description="On-device fine-tuning on the stock onnxruntime wheel."
    )
    shown = f"edge-train {__version__}"
    parser.add_argument("--version", action="version", version=shown)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    demo = commands.add_parser(
        "demo",
        help="train a small CNN on the UCI handwritten digits, from nominal checkpoint to export",
        epilog="example: edge-train demo --folder digits --epochs 5. "
        "exit codes: 0 at least 97 % of the test images are right, 1 fewer, 2 no place to write",
    )
    demo.add_argument("--folder", type=Path, help="keep the files in FOLDER (default: a scratch)")
    demo.add_argument("--epochs", type=_positive, default=15, help="passes over the data (15)")
    demo.set_defaults(run=_demo)
    nominal = commands.add_parser(
        "to-nominal",
        help="turn a full checkpoint into a nominal one: names without data",
        epilog="example: edge-train to-nominal checkpoint nominal_checkpoint. "
        "exit codes: 0 written, 2 files that cannot be used",
    )
    nominal.add_argument("checkpoint", type=Path, help="a complete checkpoint")
    nominal.add_argument("nominal", type=Path, help="the nominal checkpoint to write")
    nominal.set_defaults(run=_to_nominal)
    artifacts.add_parser(commands)
    convert.add_parser(commands)
    doctor.add_parser(commands)
    estimate.add_parser(commands)
    inspect.add_parser(commands)
    export.add_parser(commands)
    report.add_parser(commands)
    train.add_parser(commands)
    evaluate.add_parser(commands)
    return parser


def _positive(text: str) -> int:
    if not (text.isdecimal() and int(text) >= 1):
        raise argparse.ArgumentTypeError(f"expected a whole number >= 1, got '{text}'")
    return int(text)


def _demo(arguments: argparse.Namespace) -> int:
    from edge_train import demo

    return demo.main(arguments.folder, arguments.epochs)


def _to_nominal(arguments: argparse.Namespace) -> int:
    from edge_train.convert.nominal import to_nominal

    to_nominal(arguments.checkpoint, arguments.nominal)
    return 0


def _told(error: Exception) -> str:
    """One line, but for the table of a memory budget."""
    if isinstance(error, MemoryBudgetExceeded):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        where = "" if error.filename is None else f"'{printable(error.filename)}': "
        return f"{where}{error.strerror}"
    hint = "; edge-train doctor says what is missing here"
    more = hint if isinstance(error, ModuleNotFoundError) else ""
    return f"{' '.join(_shortened(str(error)).split())}{more}"


def _shortened(text: str) -> str:
    """The text without the later items of a long list (lines that begin with two blanks)."""
    lines = text.split("\n")
    items = [number for number, line in enumerate(lines) if line.startswith("  ")]
    if len(items) <= _MOST_LISTED:
        return text
    left_out = items[_MOST_LISTED:]
    lines[left_out[0]] = f"  and {len(left_out)} more."
    return "\n".join(line for number, line in enumerate(lines) if number not in left_out[1:])


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code. Errors become one line on stderr."""
    arguments = _parser().parse_args(argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # LANG=C has no degree sign
    try:
        code: int = arguments.run(arguments)
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:  # the reader of a pipe had enough
        silence(sys.stdout)
        return 141
    except (EdgeTrainError, OSError, ValueError, ImportError) as error:
        complain(f"edge-train: {_told(error)}")
        offer(())
        return 1 if isinstance(error, MemoryBudgetExceeded) else 2
    except KeyboardInterrupt:
        complain("edge-train: stopped")
        offer(())
        return 130
    return code
