"""Fused rules: training ops become our own kernels (native/kernels.c), where these fit."""

from edge_train.graph.lowering.fused import (  # noqa: F401 - each registers its rules
    activations,
    batch_norm,
    convolution,
    dropouts,
    indexing,
    losses,
    normalization,
    pooling,
    products,
    recurrent,
)
