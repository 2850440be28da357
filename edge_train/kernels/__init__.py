"""Training kernels over flat float32 buffers: one definition (reference.py), several backends."""

from edge_train.kernels.contract import (
    AdamW8Scalars,
    AdamWScalars,
    LionScalars,
    MomentumScalars,
    Steps,
    adamw8_scalars,
    adamw_scalars,
    bias_correction,
    clip_factor,
    lion_scalars,
    momentum_scalars,
)
from edge_train.kernels.dispatch import CHOICES, select
from edge_train.kernels.packed import Packed

__all__ = [
    "CHOICES",
    "AdamW8Scalars",
    "AdamWScalars",
    "LionScalars",
    "MomentumScalars",
    "Packed",
    "Steps",
    "adamw8_scalars",
    "adamw_scalars",
    "bias_correction",
    "clip_factor",
    "lion_scalars",
    "momentum_scalars",
    "select",
]
