"""Print how long the files and functions of the package are; fail above the caps.

python tools/line_budget.py [--top N] [FOLDER]
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

FILE_CAP = 350
FUNCTION_CAP = 60


@dataclass(frozen=True)
class Measured:
    name: str
    lines: int


def functions_of(path: Path, text: str) -> Iterator[Measured]:
    for node in ast.walk(ast.parse(text, str(path))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            end = node.end_lineno or node.lineno
            yield Measured(f"{path}:{node.lineno} {node.name}", end - node.lineno + 1)


def row(label: str, sizes: list[int], cap: int) -> str:
    ordered = sorted(sizes) or [0]
    p90 = ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))]
    figures = (len(sizes), sum(sizes), round(median(ordered)), p90, ordered[-1], cap)
    return f"{label:10s}" + "".join(f"{figure:8d}" for figure in figures)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("edge_train"))
    parser.add_argument("--top", type=int, default=5, help="how many of the longest to name")
    arguments = parser.parse_args()
    files: list[Measured] = []
    functions: list[Measured] = []
    for path in sorted(arguments.folder.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        files.append(Measured(str(path), text.count("\n")))
        functions.extend(functions_of(path, text))
    print(f"{'':10s}{'count':>8}{'lines':>8}{'median':>8}{'p90':>8}{'max':>8}{'cap':>8}")
    failed = False
    for label, measured, cap in (
        ("files", files, FILE_CAP),
        ("functions", functions, FUNCTION_CAP),
    ):
        print(row(label, [entry.lines for entry in measured], cap))
        longest = sorted(measured, key=lambda entry: -entry.lines)
        over = [entry for entry in longest if entry.lines > cap]
        failed = failed or bool(over)
        for entry in over or longest[: arguments.top]:
            print(f"  {'OVER ' if entry in over else ''}{entry.lines:4d}  {entry.name}")
    if failed:
        print("line budget exceeded: split the file or the function", file=sys.stderr)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
