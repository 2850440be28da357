"""Optimizers as graphs: the optimizer_model.onnx that a device reads."""

from __future__ import annotations

from edge_train.onnxblock.optim.optim import SGD, AdamW, ClipGradNorm

__all__ = ["SGD", "AdamW", "ClipGradNorm"]
