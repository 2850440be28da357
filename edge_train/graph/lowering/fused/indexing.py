"""The gradient of Gather: zeros and sums in one kernel, in the order of the indices."""

from __future__ import annotations

from edge_train import dtypes
from edge_train.graph import ir
from edge_train.graph.lowering.builder import Builder
from edge_train.graph.lowering.registry import fuses


@fuses("GatherGrad")
def gather_grad(b: Builder, node: ir.Node) -> tuple[str, ...] | None:
    shape, indices, dy = node.inputs
    if b.shapes.elem_type(indices) not in (dtypes.INT64, dtypes.INT32):
        return None
    return b.native("GatherGrad", shape, indices, dy, axis=node.attr("axis", 0))
