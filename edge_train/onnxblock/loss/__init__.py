"""Losses: a block on top of the model's output that adds the target as an input."""

from __future__ import annotations

from edge_train.onnxblock.loss.base import Loss
from edge_train.onnxblock.loss.classification import BCEWithLogitsLoss, CrossEntropyLoss
from edge_train.onnxblock.loss.ctc import CTCLoss
from edge_train.onnxblock.loss.regression import HuberLoss, KLDivLoss, L1Loss, MSELoss

__all__ = [
    "BCEWithLogitsLoss",
    "CTCLoss",
    "CrossEntropyLoss",
    "HuberLoss",
    "KLDivLoss",
    "L1Loss",
    "Loss",
    "MSELoss",
]
