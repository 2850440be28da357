"""Host side: forward op -> gradient nodes, one module a family."""

from edge_train.graph.gradients import (
    activations,
    arithmetic,
    convolution,
    dropout,
    einsum,
    functions,
    fused,
    indexing,
    layout,
    linear,
    loops,
    losses,
    normalization,
    pooling,
    quantization,
    recurrent,
    reductions,
    resampling,
)
from edge_train.graph.gradients.registry import NO_GRADIENT, REFUSED, RULES, Entry, key_of

__all__ = ["NO_GRADIENT", "REFUSED", "RULES", "Entry", "key_of"]

# importing a family registers its rules
_FAMILIES = (
    activations,
    arithmetic,
    convolution,
    dropout,
    einsum,
    functions,
    fused,
    indexing,
    layout,
    linear,
    loops,
    losses,
    normalization,
    pooling,
    quantization,
    recurrent,
    reductions,
    resampling,
)
