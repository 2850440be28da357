"""Training data: what the Trainer takes, and the readers of files.

``source_of`` turns arrays, an indexable dataset, an iterable of batches or a path into a source:
rows that can be asked for in any order, or batches that come in theirs.
"""

from edge_train.data.files import open_path
from edge_train.data.images import ImageRows
from edge_train.data.sources import (
    ArrayRows,
    Batch,
    Batches,
    ItemRows,
    Rows,
    Source,
    Subset,
    source_of,
)
from edge_train.data.tables import read_csv

__all__ = [
    "ArrayRows",
    "Batch",
    "Batches",
    "ImageRows",
    "ItemRows",
    "Rows",
    "Source",
    "Subset",
    "open_path",
    "read_csv",
    "source_of",
]
