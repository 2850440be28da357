"""The names of onnxruntime.training.api: a training script changes its import line and no more."""

from edge_train.checkpoint.state import CheckpointState
from edge_train.module import Module
from edge_train.optimizer import Optimizer
from edge_train.scheduler import LinearLRScheduler

__all__ = ["CheckpointState", "LinearLRScheduler", "Module", "Optimizer"]
