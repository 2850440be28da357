"""Pooling: ai.onnx MaxPoolGrad and AveragePoolGrad, global pools, and powers over windows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from edge_train import dtypes
from edge_train.graph import ir
from edge_train.graph.formula import Refuse
from edge_train.graph.gradients.builder import Gradients, attributes_of
from edge_train.graph.gradients.convolution import explicit_pads
from edge_train.graph.gradients.registry import gradient, refuse

refuse("MaxRoiPool", "it has no gradient here; use MaxPool on crops")
refuse("RoiAlign", "it has no gradient here; keep the trained layers behind it")


@gradient("MaxPool", quantized=True)
def max_pool(g: Gradients, node: ir.Node, dy: str, d_indices: str = "") -> str:
    indices = g.extra_output(node, 1, "mask", dtypes.INT64)
    return g.op("MaxPoolGrad", dy, indices, **attributes_of(node))


def _check_padding(g: Gradients, node: ir.Node) -> None:
    """onnxruntime pads SAME_* for a kernel without dilations and leaves windows out then; and
    where strides jump over what is left it begins inside the input."""
    if not node.attr("auto_pad", "").startswith("SAME"):
        return
    kernel = node.attr("kernel_shape")
    ones, sizes = (1,) * len(kernel), g.dims(node.inputs[0])[2:]
    rows = zip(sizes, kernel, node.attr("strides") or ones, strict=True)
    jumps = any(
        k + 1 < stride and (not isinstance(size, int) or (size - 1) % stride > k)
        for size, k, stride in rows
    )
    if jumps or max(node.attr("dilations") or ones) > 1:
        raise Refuse("auto_pad SAME with dilations or long strides; write the pads as numbers")


@gradient("AveragePool")
def average_pool(g: Gradients, node: ir.Node, dy: str) -> str:
    """Lowering finds the forward node by the names of dY and of this node."""
    _check_padding(g, node)
    attributes = attributes_of(node) | explicit_pads(g, node, node.attr("kernel_shape"))
    return g.op("AveragePoolGrad", dy, **attributes)


@gradient("MaxUnpool", cut=(1, 2))
def max_unpool(g: Gradients, node: ir.Node, dy: str) -> str:
    """The indices count through the flat output."""
    return g.op("Gather", g.reshape(dy, -1), node.inputs[1], axis=0)


def _spatial(g: Gradients, x: str) -> tuple[int, ...]:
    return tuple(range(2, g.rank(x)))


@gradient("GlobalAveragePool")
def global_average_pool(g: Gradients, node: ir.Node, dy: str) -> str:
    x = node.inputs[0]
    sizes = [size for size in g.dims(x)[2:] if isinstance(size, int)]
    if len(sizes) == g.rank(x) - 2:
        count = g.const(np.array(math.prod(sizes), dtypes.NUMPY[dtypes.FLOAT]))
    else:
        every, planes = (g.op("Size", name, elem_type=dtypes.INT64) for name in (x, dy))
        count = g.div(every, planes)
    share = g.op("Scale", dy, count, domain=ir.MICROSOFT, scale_down=1)
    return g.op("Expand", share, g.shape(x))


@gradient("GlobalMaxPool")
def global_max_pool(g: Gradients, node: ir.Node, dy: str) -> str:
    """Equal maxima share the gradient."""
    x, y = node.inputs[0], node.outputs[0]
    largest = g.cast_like(g.equal(x, y), x)
    return g.mul(largest, g.div(dy, g.sum(largest, _spatial(g, x))))


@gradient("GlobalLpPool")
def global_lp_pool(g: Gradients, node: ir.Node, dy: str) -> str:
    """y = (sum |x|^p)^(1/p): dX = dY y^(1-p) sign(x) |x|^(p-1)."""
    p = node.attr("p", 2)
    return g.mul(_over_power(g, dy, node.outputs[0], p - 1), _signed_power(g, node.inputs[0], p))


@gradient("LpPool")
def lp_pool(g: Gradients, node: ir.Node, dy: str) -> str:
    """The same with each dY y^(1-p) added up over its window: the input's gradient of a
    convolution with ones, a plane a channel."""
    _check_padding(g, node)
    x, p, kernel = node.inputs[0], node.attr("p", 2), tuple(node.attr("kernel_shape"))
    share = _over_power(g, dy, node.outputs[0], p - 1)
    names = ("kernel_shape", "auto_pad", "dilations", "pads", "strides")
    attributes = {name: node.attr(name) for name in names} | _pads_of(g, node, kernel)
    ones = g.const(np.ones((1, 1, *kernel), dtypes.NUMPY[g.elem_type(x)]))
    planes = [g.reshape(t, -1, 1, g.shape_slice(t, 2, 2 + len(kernel))) for t in (share, x)]
    dx, *_ = g.training_op("ConvGrad", *planes, ones, makes=(True, False, False), **attributes)
    return g.mul(g.reshape_like(dx, x), _signed_power(g, x, p))


def _pads_of(g: Gradients, node: ir.Node, kernel: tuple[int, ...]) -> dict[str, Any]:
    """What replaces the padding of a pool in a convolution: numbers for SAME_*, and in ceil_mode
    the pads with what the last windows reach beyond them."""
    if node.attr("auto_pad", "").startswith("SAME") or not node.attr("ceil_mode", 0):
        return explicit_pads(g, node, kernel)
    count = len(kernel)
    strides, dilations = (node.attr(name) or (1,) * count for name in ("strides", "dilations"))
    given = None if node.attr("auto_pad") == "VALID" else node.attr("pads")
    pads = list(given or (0,) * (2 * count))
    sizes, windows = (g.dims(name)[2:] for name in (node.inputs[0], node.outputs[0]))
    for axis, (size, found) in enumerate(zip(sizes, windows, strict=True)):
        if not isinstance(size, int) or not isinstance(found, int):
            raise Refuse("ceil_mode with sizes that are not known: declare them")
        extent = dilations[axis] * (kernel[axis] - 1) + 1
        pads[count + axis] = max((found - 1) * strides[axis] + extent - size - pads[axis], 0)
    return {"auto_pad": "NOTSET", "pads": pads}


def _over_power(g: Gradients, dy: str, y: str, exponent: int) -> str:
    """dy / y^exponent; 0 where y is 0, there is no slope."""
    if exponent == 0:
        return dy
    zero = g.equal(y, 0.0)
    power = y if exponent == 1 else g.op("Pow", y, g.scalar(exponent, y))
    return g.where(zero, 0.0, g.div(dy, g.where(zero, 1.0, power)))


def _signed_power(g: Gradients, x: str, p: int) -> str:
    """sign(x) |x|^(p-1)."""
    if p == 1:
        return g.op("Sign", x)
    if p == 2:
        return x
    size = g.op("Abs", x)
    return g.mul(x, size if p == 3 else g.op("Pow", size, g.scalar(p - 2, x)))
