"""Ops that only graph optimizers and quantizers write: no gradient, and what to do instead.

They may stand in frozen parts that no gradient passes through.
"""

from __future__ import annotations

from edge_train.graph import ir
from edge_train.graph.gradients.registry import refuse

_HINT = (
    "an optimizer or quantizer made this op for inference: export the model again without graph "
    "optimization and quantization, or freeze every parameter before it"
)

_CONTRIB = """
Attention BiasAdd BiasSoftmax BiasSplitGelu DecoderMaskedMultiHeadAttention
DecoderMaskedSelfAttention DynamicQuantizeLSTM DynamicQuantizeMatMul EmbedLayerNormalization
FusedMatMulActivation GatherBlockQuantized GemmFastGelu GroupQueryAttention
LongformerAttention MatMulBnb4 MatMulFpQ4 MatMulInteger16 MatMulIntegerToFloat MatMulNBits
MultiHeadAttention NhwcConv NhwcFusedConv NhwcMaxPool PackedAttention PackedMultiHeadAttention
QAttention QEmbedLayerNormalization QGemm QLinearAdd QLinearAveragePool QLinearConcat QLinearConv
QLinearGlobalAveragePool QLinearLeakyRelu QLinearMul QLinearReduceMean QLinearSigmoid
QLinearSoftmax QLinearWhere QMoE QOrderedAttention QOrderedGelu QOrderedLayerNormalization
QOrderedMatMul QuantizeBFP SparseAttention TransposeMatMul
"""

_STANDARD = "ConvInteger DynamicQuantizeLinear MatMulInteger QLinearConv QLinearMatMul"

for _op_type in _CONTRIB.split():
    refuse(_op_type, _HINT, ir.MICROSOFT)
for _op_type in _STANDARD.split():
    refuse(_op_type, _HINT)
