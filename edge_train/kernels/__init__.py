"""Training kernels over flat float32 buffers: one definition (reference.py), several backends."""

from edge_train.kernels.contract import (
    AdamWScalars,
    LionScalars,
    MomentumScalars,
    Steps,
    adamw_scalars,
    bias_correction,
    clip_factor,
    lion_scalars,
    momentum_scalars,
)
from edge_train.kernels.dispatch import CHOICES, select

__all__ = [
    "CHOICES",
    "AdamWScalars",
    "LionScalars",
    "MomentumScalars",
    "Steps",
    "adamw_scalars",
    "bias_correction",
    "clip_factor",
    "lion_scalars",
    "momentum_scalars",
    "select",
]
