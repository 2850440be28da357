"""Labels outside the classes of the model, found before training where that needs no decoding."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edge_train.data.images import ImageRows
from edge_train.data.sources import Array, ArrayRows, Source, Subset
from edge_train.errors import DataError
from edge_train.graph.lowering import LabelRange
from edge_train.inputs import label_text
from edge_train.training.feeds import Feeder

_MOST_READ = 10_000_000  # more are checked batch by batch: reading them all takes too long


def check_labels(ranges: Sequence[LabelRange], feeder: Feeder, source: Source) -> None:
    """DataError names the first row whose label the model has no class for, and how many are so.

    Labels of datasets and iterables are seen batch by batch only.
    """
    for labels in ranges:
        found = _column(source, feeder, labels.labels)
        if found is None or found.size > _MOST_READ or not found.size or labels.classes is None:
            continue
        values = found.reshape(len(found), -1)
        bad = (values < 0) | (values >= labels.classes)
        if labels.ignore_index is not None:
            bad &= values != labels.ignore_index
        if bad.any():
            rows = np.flatnonzero(bad.any(axis=1))
            value = int(values[rows[0]][bad[rows[0]]][0])
            text = label_text(labels.labels, value, labels.classes, labels.ignore_index)
            raise DataError(f"{_place(source, int(rows[0]))}: {text}; so it is in {len(rows)} rows")


def _column(source: Source, feeder: Feeder, name: str) -> Array | None:
    """The labels of all rows; None where they are not there as numbers at once."""
    if isinstance(source, Subset):
        whole = _column(source.rows, feeder, name)
        return None if whole is None else whole[source.chosen]
    names = [value.name for value in feeder.inputs]
    if name not in names or name in feeder.scale:
        return None
    place = names.index(name)
    found: Array | None = None
    if isinstance(source, ImageRows):
        found = source.labels if place == 1 else None
    elif isinstance(source, ArrayRows) and isinstance(source.columns, tuple):
        found = source.columns[place]
    elif isinstance(source, ArrayRows):
        found = source.columns.get(feeder.names.get(name, name))  # type: ignore[union-attr]
    return found if found is not None and found.dtype.kind in "iuf" else None


def _place(source: Source, row: int) -> str:
    if isinstance(source, Subset):
        return _place(source.rows, int(source.chosen[row]))
    return f"'{source.files[row]}'" if isinstance(source, ImageRows) else f"row {row} of the data"
