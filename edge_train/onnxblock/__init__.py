"""Building blocks for losses and optimizers on top of an ONNX model (host side, needs ``onnx``).

The names are those of onnxruntime.training.onnxblock: a custom loss written for it runs unchanged.
"""

from __future__ import annotations

from edge_train.onnxblock import _graph_utils, blocks, loss, optim  # noqa: F401
from edge_train.onnxblock.blocks import Block
from edge_train.onnxblock.checkpoints import load_checkpoint_to_model, save_checkpoint
from edge_train.onnxblock.model_accessor import base, custom_op_library, empty_base
from edge_train.onnxblock.onnxblock import ForwardBlock, TrainingBlock

__all__ = [
    "Block",
    "ForwardBlock",
    "TrainingBlock",
    "base",
    "blocks",
    "custom_op_library",
    "empty_base",
    "load_checkpoint_to_model",
    "loss",
    "optim",
    "save_checkpoint",
]
