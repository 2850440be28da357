"""Names of classes and their numbers, which have to be the same in training and evaluation.

A folder of images and a CSV of words number the classes that they have: an evaluation set that
lacks one would number all the others differently.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from edge_train.data.images import ImageRows
from edge_train.data.sources import Array, ArrayRows, Source, Subset
from edge_train.errors import DataError

#: the private property of a state that was trained on classes with names
CLASSES = "edge_train.classes"
_MOST_NAMED = 50


def classes_of(source: Source) -> tuple[str, ...]:
    """The names by number; () where the labels are numbers themselves."""
    if isinstance(source, Subset):
        return classes_of(source.rows)
    return source.classes if isinstance(source, (ArrayRows, ImageRows)) else ()


def classes_in(text: str | None) -> tuple[str, ...]:
    """The names in the value of the property ``CLASSES``; () in anything else."""
    with suppress(ValueError, RecursionError):
        names = json.loads(text or "")
        if isinstance(names, list) and all(isinstance(name, str) for name in names):
            return tuple(names)
    return ()


def class_notes(classes: Sequence[str]) -> Iterator[str]:
    """Which number stands for which class, in words for people."""
    if classes:
        named = [f"{number} {name}" for number, name in enumerate(classes[:_MOST_NAMED])]
        more = f", {len(classes) - _MOST_NAMED} more" if len(classes) > _MOST_NAMED else ""
        yield f"the data has {len(classes)} classes: {', '.join(named)}{more}"


def left_out(*sources: Source | None) -> int:
    """How many unreadable images were left out so far."""
    found: set[Path] = set()
    for source in sources:
        rows = source.rows if isinstance(source, Subset) else source
        if isinstance(rows, ImageRows):
            found.update(rows.left_out)
    return len(found)


def numbered_like(source: Source, classes: tuple[str, ...]) -> Source:
    """The source with the number that each of its classes has in ``classes``.

    DataError names the classes that are not there.
    """
    own = classes_of(source)
    if not own or own == classes:
        return source
    if isinstance(source, Subset):
        return replace(source, rows=numbered_like(source.rows, classes))  # type: ignore[arg-type]
    if isinstance(source, ImageRows):
        return replace(source, labels=_renumbered(source.labels, own, classes), classes=classes)
    if isinstance(source, ArrayRows) and isinstance(source.columns, tuple):
        *inputs, labels = source.columns
        return ArrayRows((*inputs, _renumbered(labels, own, classes)), classes)
    return source


def _renumbered(labels: Array, own: tuple[str, ...], classes: tuple[str, ...]) -> Array:
    there = [own[number] for number in np.unique(labels)]
    unknown = [name for name in there if name not in classes]
    if unknown:
        raise DataError(
            f"the data has the classes {unknown[:8]}, which the training data has not: it has "
            f"{list(classes[:20]) or 'numbers'}"
        )
    numbers = {name: number for number, name in enumerate(classes)}
    table = np.array([numbers.get(name, -1) for name in own], np.int64)
    renumbered: Array = table[labels]
    return renumbered
