"""A Trainer on the demo's digits, the smallest real run there is."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from edge_train.api import CheckpointState, Module, Optimizer
from edge_train.demo import HERE, Digits, load_digits
from edge_train.trainer import Trainer

ARTIFACTS = HERE / "artifacts"


@lru_cache(maxsize=1)
def digits() -> tuple[Digits, Digits]:
    """The training and the test images."""
    return load_digits()


def fresh_module() -> tuple[Module, Optimizer]:
    """The demo's CNN with its first weights."""
    state = CheckpointState.load_checkpoint(ARTIFACTS / "checkpoint")
    graphs = (ARTIFACTS / "training_model.onnx", ARTIFACTS / "eval_model.onnx")
    module = Module(graphs[0], state, graphs[1])
    return module, Optimizer(ARTIFACTS / "optimizer_model.onnx", module)


def trainer(rows: int = 320, **options: Any) -> Trainer:
    """A Trainer on the first ``rows`` training images."""
    module, optimizer = fresh_module()
    training, _ = digits()
    data = options.pop("data", (training.x[:rows], training.labels[:rows]))
    return Trainer(module, optimizer, data, **{"schedule": 0.01, **options})


def weights(made: Trainer) -> np.ndarray:
    """Every parameter, running statistics too, as one vector."""
    return np.array(made.module.get_contiguous_parameters().numpy())
