"""``edge-train report``: the curves and the summary of a run as one HTML page."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from edge_train.printable import printable

_EXAMPLES = """\
examples:
  edge-train report runs/digits
      writes runs/digits/report.html
  edge-train report runs/digits --out /sdcard/digits.html
      somewhere else; the page is one file, to be sent or opened in any browser
  edge-train report runs/digits --text
      the summary in the terminal

exit codes: 0 written, 2 no such run or no place to write
"""


def add_parser(commands: Any) -> None:
    """Adds the subcommand to the parsers of ``edge-train``."""
    parser = commands.add_parser(
        "report",
        help="make a page with the curves of a run",
        description="Write one self-contained HTML page: loss, rate, throughput, memory and "
        "temperature, events and the summary. Works while the run goes on, too.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("place", type=Path, metavar="RUN", help="its folder or run file")
    parser.add_argument("--out", type=Path, metavar="FILE", help="(RUN/report.html)")
    parser.add_argument("--text", action="store_true", help="print the summary, write nothing")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from edge_train import atomic, report
    from edge_train.commands.places import refuse_inputs, run_files
    from edge_train.run_history import read_history

    place = _place(arguments.place)
    history = read_history(place)
    if arguments.text:
        for name, text in report.summary(history):
            print(f"{name:>26}  {printable(text)}")
        return 0
    folder = place if place.is_dir() else place.parent
    out: Path = arguments.out or folder / "report.html"
    refuse_inputs(out, arguments.place, place, *run_files(folder))
    page = report.page(history, folder.resolve().name, time.time())
    with atomic.replacing(out) as file:
        file.write(page.encode("utf-8", "replace"))
    print(printable(out))
    return 0


def _place(given: Path) -> Path:
    """The folder that a run file names, or what was given."""
    if given.suffix != ".toml":
        return given
    from edge_train.runfile.reading import read

    folder = read(given).folder
    if folder is None:
        raise ValueError(f"'{given}' has no key 'folder': give the folder of the run")
    return folder
