"""Fused rules: training ops become our own kernels (native/kernels.c), where these fit."""

from edge_train.graph.lowering.fused import (
    activations,
    batch_norm,
    convolution,
    indexing,
    losses,
    normalization,
    pooling,
    products,
    recurrent,
)

__all__ = ["FAMILIES"]

# importing a family registers its rules
FAMILIES = (
    activations,
    batch_norm,
    convolution,
    indexing,
    losses,
    normalization,
    pooling,
    products,
    recurrent,
)
