"""Pools of a training graph by our own kernels: MaxPool, whose forward pass leaves a byte an output
that says where its maximum was, and the gradients of both."""

from __future__ import annotations

from typing import Any

from edge_train import dtypes
from edge_train.graph import ir
from edge_train.graph.lowering.builder import Builder
from edge_train.graph.lowering.fused.convolution import MOST_STEPS, window_attributes
from edge_train.graph.lowering.pooling import average_pool_of, is_copied, is_padded_otherwise
from edge_train.graph.lowering.registry import fuses
from edge_train.graph.lowering.windows import window_of

#: native/pool.c keeps the number of a window's element in a byte
MOST_TAPS = 255


@fuses("MaxPool", domain="")
def max_pool(b: Builder, node: ir.Node) -> tuple[str, ...] | None:
    """Where its gradient alone reads the indices; without any, onnxruntime is quick itself."""
    x, mask = node.inputs[0], b.node.output(1)
    readers = b.readers(mask) if mask else ()
    if not readers or any(reader.op_type != "MaxPoolGrad" for reader in readers):
        return None
    if b.is_output(mask):
        return None
    found = _window(b, node, x, MOST_TAPS)
    if found is None:
        return None
    y, taps = b.native("MaxPool", x, like=(node.output(0), ""), **found)
    b.shapes.set(taps, dtypes.UINT8, b.shapes.dims(node.output(0)))
    return y, taps


def _window(b: Builder, node: ir.Node, x: str, taps: int) -> dict[str, Any] | None:
    """The kernel's attributes for a window of at most so many elements, None for other pools."""
    kernel = tuple(node.attr("kernel_shape") or ())
    if b.shapes.rank(x) != 4 or len(kernel) != 2 or node.attr("ceil_mode", 0):
        return None
    if not 0 < kernel[0] * kernel[1] <= taps or is_padded_otherwise(node, kernel):
        return None
    found = window_attributes(window_of(b, node, x, kernel))
    return None if found is None else {**found, "kernel_shape": kernel}


@fuses("MaxPoolGrad", domain="")
def max_pool_grad(b: Builder, node: ir.Node) -> tuple[str, ...] | None:
    """dX, behind a forward op that has left the places of its maxima."""
    dy, taps = node.inputs
    forward = next((n for n in b.nodes if n.domain == ir.NATIVE and n.output(1) == taps), None)
    if forward is None or forward.op_type != "MaxPool":
        return None
    x = forward.inputs[0]
    attributes = {name: a.value for name, a in forward.attributes.items()}
    return b.native("MaxPoolGrad", dy, taps, b.shape(x), like=(x,), **attributes)


@fuses("AveragePoolGrad", domain="")
def average_pool_grad(b: Builder, node: ir.Node) -> tuple[str, ...] | None:
    """dX where windows overlap, or where their places are known at run time only."""
    forward = average_pool_of(b, node)
    x = forward.inputs[0]
    found = _window(b, forward, x, MOST_STEPS)
    if found is None or is_copied(b, x, window_of(b, forward, x, found["kernel_shape"])):
        return None
    found["count_include_pad"] = forward.attr("count_include_pad", 0)
    return b.native("AveragePoolGrad", node.inputs[0], b.shape(x), like=(x,), **found)
