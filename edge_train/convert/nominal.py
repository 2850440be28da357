"""A full checkpoint to a nominal one: the names and the trainable/frozen split, no data."""

from __future__ import annotations

import os

import numpy as np

from edge_train import dtypes
from edge_train.checkpoint import files
from edge_train.checkpoint.format import Checkpoint
from edge_train.checkpoint.source import Readable
from edge_train.checkpoint.tensor import Tensor


def to_nominal(source: Readable, destination: str | os.PathLike[str]) -> None:
    """Write the nominal checkpoint of ``source``, as generate_artifacts would have made it.

    Optimizer state and properties belong to a training run and are left out. Raises
    FileNotFoundError, CheckpointError and its children.
    """
    with files.open_checkpoint(source) as checkpoint:
        nominal = Checkpoint(
            trainable=tuple(_nameplate(tensor) for tensor in checkpoint.trainable),
            frozen=tuple(_nameplate(tensor) for tensor in checkpoint.frozen),
            is_nominal=True,
        )
    files.write(nominal, destination)


def _nameplate(tensor: Tensor) -> Tensor:
    return Tensor(tensor.name, dtypes.FLOAT, (), np.empty(0, np.float32))
