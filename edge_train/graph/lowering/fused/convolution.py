"""Convolutions by our own kernels: depthwise ones (a general path in onnxruntime), and 1x1."""

from __future__ import annotations

from typing import Any

from edge_train.graph import ir
from edge_train.graph.lowering.builder import Builder
from edge_train.graph.lowering.convolution import kernel_of
from edge_train.graph.lowering.registry import fuses
from edge_train.graph.lowering.windows import Window, window_of

#: native/window.h: of strides, pads and dilations
MOST_STEPS = 1 << 20
#: native/conv_depthwise.c keeps a sum for each tap of a kernel
MOST_TAPS = 121


@fuses("Conv", domain="")
def conv(b: Builder, node: ir.Node) -> tuple[str, ...] | None:
    x, w = node.inputs[:2]
    if w in b.source.initializers:  # onnxruntime blocks the channels of a constant: twice as fast
        return None
    if _is_pointwise(b, node, x, w):
        return b.native("PointwiseConv", *node.inputs, like=(node.output(0),))
    found = _depthwise(b, node, x, w)
    if found is None:
        return None
    return b.native("DepthwiseConv", *node.inputs, like=(node.output(0),), **found)


@fuses("ConvGrad")
def conv_grad(b: Builder, node: ir.Node) -> tuple[str, ...] | None:
    dy, x, w = node.inputs
    wanted = [b.is_read(b.node.output(i)) for i in range(3)]
    likes = [x, w, node.output(2)]
    if _is_pointwise(b, node, x, w):
        return b.native_some("PointwiseConvGrad", (dy, x, w), likes, wanted)
    found = _depthwise(b, node, x, w)
    if found is not None:
        return b.native_some("DepthwiseConvGrad", (dy, x, w), likes, wanted, **found)
    found = _general(b, node, x, w)
    if found is None:
        return None
    return b.native_some("ConvGrad", (dy, x, w), likes, wanted, **found)


def _is_pointwise(b: Builder, node: ir.Node, x: str, w: str) -> bool:
    """Whether every window is one element and one group covers all channels."""
    if b.shapes.rank(x) is None or b.rank(x) < 3 or node.attr("group", 1) != 1:
        return False
    kernel = kernel_of(b, node, w)
    return kernel is not None and window_of(b, node, x, kernel).is_plain


def _depthwise(b: Builder, node: ir.Node, x: str, w: str) -> dict[str, Any] | None:
    """The kernel's attributes where one filter of two axes meets one channel, else None."""
    group, dims = node.attr("group", 1), b.shapes.dims(w) or ()
    if b.shapes.rank(x) != 4 or len(dims) != 4 or group == 1 or dims[:2] != (group, 1):
        return None
    kernel = kernel_of(b, node, w)
    if kernel is None or kernel[0] * kernel[1] > MOST_TAPS:
        return None
    return window_attributes(window_of(b, node, x, kernel))


def _general(b: Builder, node: ir.Node, x: str, w: str) -> dict[str, Any] | None:
    """The attributes of a convolution of two axes whose kernel is not too large."""
    kernel = kernel_of(b, node, w) if b.shapes.rank(x) == 4 else None
    if kernel is None or kernel[0] * kernel[1] > MOST_TAPS:
        return None
    found = window_attributes(window_of(b, node, x, kernel))
    return found and {**found, "group": node.attr("group", 1)}


def window_attributes(window: Window) -> dict[str, Any] | None:
    """Strides, pads, dilations; None where pads depend on the run or no kernel takes one."""
    if window.pads is None or min(window.pads, default=0) < 0:
        return None
    if max(*window.strides, *window.pads, *window.dilations) > MOST_STEPS:
        return None
    return {"strides": window.strides, "pads": window.pads, "dilations": window.dilations}
