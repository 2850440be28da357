"""Training kernels over flat float32 buffers: one definition (reference.py), several backends."""

from edge_train.kernels.contract import AdamWScalars, Steps, adamw_scalars, bias_correction
from edge_train.kernels.dispatch import CHOICES, select

__all__ = ["CHOICES", "AdamWScalars", "Steps", "adamw_scalars", "bias_correction", "select"]
