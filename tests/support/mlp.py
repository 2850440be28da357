"""MLP 784-500-10: its graphs are goldens, its checkpoint is made here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from support.zoo import GOLDEN, Artifacts

from edge_train import dtypes
from edge_train.api import CheckpointState, Module
from edge_train.checkpoint import files
from edge_train.checkpoint.format import Checkpoint
from edge_train.checkpoint.tensor import Tensor

MLP784 = Artifacts("mlp784", GOLDEN / "mlp784")
PARAMETERS = ("w1", "b1", "w2", "b2")


def write_checkpoint(path: Path, seed: int = 0) -> None:
    """A full checkpoint of He weights, by way of a nominal one."""
    plates = tuple(Tensor(n, dtypes.FLOAT, (), np.empty(0, np.float32)) for n in PARAMETERS)
    nominal = path.with_name("nominal_checkpoint")
    files.write(Checkpoint(trainable=plates, frozen=(), is_nominal=True), nominal)
    module = Module(MLP784.training_model, CheckpointState.load_checkpoint(nominal))
    rng = np.random.default_rng(seed)
    parts = []
    for slot in module.parameter_layout():
        scale = np.sqrt(2 / slot.shape[-1]) if len(slot.shape) == 2 else 0
        parts.append((scale * rng.standard_normal(slot.size)).astype(np.float32))
    module.copy_buffer_to_parameters(np.concatenate(parts), trainable_only=False)
    CheckpointState.save_checkpoint(module.state, path)
