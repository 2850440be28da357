"""CSV: numbers in columns, one of them the label."""

from __future__ import annotations

import csv
import itertools
import math
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from edge_train.data.sources import Array, ArrayRows
from edge_train.errors import DataError


def read_csv(
    path: Path,
    label: str | int | Sequence[str] = -1,
    features: Sequence[str] | None = None,
) -> ArrayRows:
    """(features, label) of a CSV file: float32 (n, features), and the label column(s).

    ``label`` is a column's name or number (the last by default), or several names: float32 (n, k).
    Whole numbers become int64, words become the numbers of their sorted set (``classes``), all else
    float32. A word among numbers is an error.
    The first line is a header if it has a word where the second has a number. ``features`` are
    names of columns (default: all others).

    Raises DataError with the line and column of what is no number.
    """
    header, lines = _lines(path)
    names = header or [str(index) for index in range(len(lines[0][1]))]
    targets = _places(names, [label] if isinstance(label, (str, int)) else list(label), path)
    chosen = _places(names, list(features), path) if features else None
    inputs = chosen or [place for place in range(len(names)) if place not in targets]
    if not inputs:
        raise DataError(f"'{path}' has no column left beside the label")
    x = np.stack([_numbers(lines, place, names, path) for place in inputs], axis=1)
    if isinstance(label, (str, int)):
        labels, classes = _labels(lines, targets[0], names, path)
        return ArrayRows((x, labels), classes)
    y = np.stack([_numbers(lines, place, names, path) for place in targets], axis=1)
    return ArrayRows((x, y))


Lines = list[tuple[int, list[str]]]


def _lines(path: Path) -> tuple[list[str], Lines]:
    """The header, and the rows with their line numbers."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            sample = file.read(4096)
            file.seek(0)
            delimiter = "\t" if path.suffix.lower() == ".tsv" else _delimiter(sample)
            reader = csv.reader(file, delimiter=delimiter, skipinitialspace=True)
            lines = [(reader.line_num, cells) for cells in reader if cells]
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"'{path}' is no CSV file: {error}") from error
    header = _header(lines)
    rows = lines[1:] if header else lines
    if not rows:
        raise DataError(f"'{path}' has no rows")
    width = len(header or rows[0][1])
    for number, cells in rows:
        if len(cells) != width:
            raise DataError(f"'{path}', line {number}: {len(cells)} columns, expected {width}")
    return header, rows


def _delimiter(sample: str) -> str:
    first = sample.splitlines()[0] if sample else ""
    return max(",;\t", key=first.count)


def _header(lines: Lines) -> list[str]:
    if len(lines) < 2:
        return []
    first, second = lines[0][1], lines[1][1]
    words = any(
        math.isnan(_number(a)) and not math.isnan(_number(b))
        for a, b in itertools.zip_longest(first, second, fillvalue="")
    )
    return first if words else []


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return math.nan


def _places(
    names: list[str], wanted: list[str] | list[int] | list[str | int], path: Path
) -> list[int]:
    places = []
    for name in wanted:
        if isinstance(name, int):
            if not -len(names) <= name < len(names):
                raise DataError(f"'{path}' has {len(names)} columns, none has number {name}")
            places.append(name % len(names))
        elif name in names:
            places.append(names.index(name))
        else:
            raise DataError(f"'{path}' has no column '{name}'; it has {names[:20]}")
    return places


def _numbers(lines: Lines, place: int, names: list[str], path: Path) -> Array:
    column = np.empty(len(lines), np.float32)
    for index, (number, cells) in enumerate(lines):
        try:
            column[index] = float(cells[place])
        except ValueError:
            raise DataError(
                f"'{path}', line {number}, column '{names[place]}': expected a number, got "
                f"'{cells[place]}'"
            ) from None
    return column


def _labels(
    lines: Lines, place: int, names: list[str], path: Path
) -> tuple[Array, tuple[str, ...]]:
    """The label column, and the names of the classes where it has words."""
    cells = [cells[place] for _, cells in lines]
    with suppress(ValueError):
        return np.array([int(cell) for cell in cells], np.int64), ()
    with suppress(ValueError):
        return np.array([float(cell) for cell in cells], np.float32), ()
    words = [index for index, cell in enumerate(cells) if not _is_number(cell)]
    if len(words) < len(cells) / 2:
        raise DataError(
            f"'{path}', line {lines[words[0]][0]}, column '{names[place]}': expected a number as "
            f"most lines have, got '{cells[words[0]]}'"
        )
    classes = sorted(set(cells))
    numbers = {word: number for number, word in enumerate(classes)}
    return np.array([numbers[cell] for cell in cells], np.int64), tuple(classes)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
