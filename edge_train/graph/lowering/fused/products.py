"""Matrix products stay in onnxruntime, whose FusedMatMul takes transposed operands and a factor."""

from __future__ import annotations

from edge_train.graph import ir
from edge_train.graph.lowering.builder import Builder
from edge_train.graph.lowering.registry import fuses

_ATTRIBUTES = ("transA", "transB", "transBatchA", "transBatchB", "alpha")


@fuses("FusedMatMul")
def fused_matmul(b: Builder, node: ir.Node) -> str:
    kept = {name: node.attr(name) for name in _ATTRIBUTES if name in node.attributes}
    return b.op("FusedMatMul", *node.inputs, domain=ir.MICROSOFT, **kept)
