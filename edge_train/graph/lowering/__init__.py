"""Device side: training ops become nodes that stock onnxruntime has."""

from edge_train.graph.lowering import (  # noqa: F401 - each family registers its rules
    activations,
    arithmetic,
    convolution,
    dropouts,
    fused,
    indexing,
    legacy_losses,
    losses,
    normalization,
    pooling,
    quantization,
    recurrent_gru,
    recurrent_lstm,
    resizing,
    scattering,
    tensor_lists,
    transposed_convolution,
)
from edge_train.graph.lowering.builder import LabelRange
from edge_train.graph.lowering.driver import Lowered, LoweringRefused, accumulating, lower
from edge_train.graph.lowering.registry import RULES

__all__ = ["RULES", "LabelRange", "Lowered", "LoweringRefused", "accumulating", "lower"]
