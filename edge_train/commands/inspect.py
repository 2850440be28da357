"""``edge-train inspect``: what is in checkpoints and models."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from edge_train.printable import printable

_EXAMPLES = """\
examples:
  edge-train inspect checkpoint
      parameters, optimizer state, properties, sizes
  edge-train inspect artifacts/
      every checkpoint and model in a folder
  edge-train inspect training_model.onnx --json
      a list with one record a file, for programs

exit codes: 0 shown, 2 a file that cannot be read
"""
_MOST_ROWS = 400


def add_parser(commands: Any) -> None:
    """Adds the subcommand to the parsers of ``edge-train``."""
    parser = commands.add_parser(
        "inspect",
        help="show what is in a checkpoint or a model",
        description="Show names, shapes, dtypes, what is trained, optimizer state, properties and "
        "sizes. Neither onnx nor a session of onnxruntime is needed; no tensor data is read.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("paths", nargs="+", type=Path, metavar="FILE", help="or folders")
    parser.add_argument("--json", action="store_true", help="machine-readable output")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from edge_train.inspection import inspect

    records = [record for path in arguments.paths for record in inspect(path)]
    if arguments.json:
        from edge_train.metrics_log import plain

        print(json.dumps(plain(records), indent=1))
        return 0
    print("\n\n".join("\n".join(_lines(record)) for record in records))
    return 0


def _lines(record: dict[str, Any]) -> Iterator[str]:
    size = _size(record["file_bytes"])
    yield f"{printable(record['path'])}: {record['kind']}, {size}"
    if "parameters" in record:
        yield from _checkpoint(record)
    else:
        yield from _model(record)


def _checkpoint(record: dict[str, Any]) -> Iterator[str]:
    for part, total in record["totals"].items():
        yield f"  {part}: {_total(total)}"
    if record["external_data"]:
        yield "  tensor data lies in a second file beside it"
    if record["parameters"]:
        yield "  parameters"
        yield from _table(
            (p["name"], _shape(p["shape"]), p["dtype"] or "", _size(p["bytes"]), _trained(p))
            for p in record["parameters"]
        )
    for group in record["optimizer"]:
        yield (
            f"  optimizer {printable(group['name'])}: step {group['step']}, initial rate "
            f"{group['initial_learning_rate']:g}"
        )
        for name, total in group["moments"].items():
            yield f"    {printable(name)}: {_total(total)}"
    if not record["optimizer"]:
        yield "  no optimizer state"
    for title in ("properties", "own_properties"):
        if record[title]:
            yield f"  {title.replace('own_', 'edge_train ')}"
            for name, value in record[title].items():
                yield f"    {printable(name)} = {printable(_brief(value))}"


def _model(record: dict[str, Any]) -> Iterator[str]:
    opsets = ", ".join(f"{name} {version}" for name, version in record["opsets"].items())
    yield f"  IR {record['ir_version']}; opsets: {opsets or 'none'}"
    for name, value in record.get("optimizer", {}).items():
        if value is not None:
            yield f"  {name} = {_setting(value)}"
    yield "  inputs"
    yield from _table(
        (v["name"], _shape(v["shape"]), v["dtype"] or "", v["role"]) for v in record["inputs"]
    )
    yield "  outputs"
    yield from _table((v["name"], _shape(v["shape"]), v["dtype"] or "") for v in record["outputs"])
    if record["initializers"]:
        yield f"  constants and weights in the file: {len(record['initializers'])}"
        yield from _table(
            (v["name"], _shape(v["shape"]), v["dtype"], _size(v["bytes"]), v["external"] or "")
            for v in record["initializers"]
        )
    ops = ", ".join(f"{printable(op)} {count}" for op, count in record["ops"].items())
    yield f"  nodes ({record['nodes']}): {ops or 'none'}"


def _table(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    shown = [[printable(cell) for cell in row] for row in rows]
    left_out = len(shown) - _MOST_ROWS
    shown = shown[:_MOST_ROWS]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    for row in shown:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "    " + "  ".join(cells).rstrip()
    if left_out > 0:
        yield f"    ... {left_out} more (--json shows them all)"


def _setting(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(_setting, value))
    return f"{value:.7g}" if isinstance(value, float) else str(value)


def _trained(parameter: dict[str, Any]) -> str:
    return "trainable" if parameter["trainable"] else "frozen"


def _total(total: dict[str, Any]) -> str:
    words = f"{total['tensors']} tensors"
    if total["bytes"] is None:
        return f"{words}, no data yet"
    return f"{words}, {total['elements']} elements, {_size(total['bytes'])}"


def _shape(shape: list[Any] | None) -> str:
    if shape is None:
        return ""
    return f"[{', '.join('?' if dim is None else str(dim) for dim in shape)}]"


def _size(count: int | None) -> str:
    if count is None:
        return ""
    for unit, size in (("GB", 2**30), ("MB", 2**20), ("kB", 2**10)):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count} bytes"


def _brief(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 200 else f"{text[:200]}... ({len(text)} characters)"
