"""MaxPoolGrad and AveragePoolGrad in standard ops."""

from __future__ import annotations

import math

import numpy as np

from edge_train import dtypes
from edge_train.graph import ir
from edge_train.graph.lowering.builder import Builder, Refuse
from edge_train.graph.lowering.registry import lowers
from edge_train.graph.lowering.windows import Window, spread, window_of

_POOL = ("auto_pad", "ceil_mode", "dilations", "kernel_shape", "pads", "strides")


@lowers("MaxPoolGrad", domain="")
def max_pool_grad(b: Builder, node: ir.Node) -> str:
    """Each dy goes to the element that was the largest of its window."""
    dy, indices = node.inputs
    forward = next((n for n in b.nodes if n.op_type == "MaxPool" and n.output(1) == indices), None)
    if forward is None:
        raise Refuse(f"'{indices}' is not the second output of a MaxPool in this graph")
    x = forward.inputs[0]
    window = window_of(b, forward, x, tuple(forward.attr("kernel_shape")))
    backwards = bool(forward.attr("storage_order", 0)) and window.rank > 1
    shape = _reversed_spatial(b, x, window) if backwards else b.shape(x)
    # onnxruntime up to 1.24 or later gives a window of NaNs a negative index: MaxUnpool refuses it
    indices = b.op("Max", indices, b.ints(0))
    dx = _scatter(b, dy, indices, shape, window)
    return b.transpose(dx, 0, 1, *reversed(window.axes)) if backwards else dx


def _reversed_spatial(b: Builder, x: str, window: Window) -> str:
    """Shape of x with the spatial axes reversed: storage_order 1 counts the first one fastest."""
    sizes = [b.shape_slice(x, axis, axis + 1) for axis in reversed(window.axes)]
    return b.concat_ints(b.shape_slice(x, 0, 2), *sizes)


def _scatter(b: Builder, dy: str, indices: str, shape: str, window: Window) -> str:
    """Zeros of ``shape`` with dy added at flat indices.

    Where windows do not overlap no index comes twice and MaxUnpool does it in a quarter of the
    time (64x16x28x28: 0.3 / 1.2 ms).
    """
    apart = all(s >= e for s, e in zip(window.strides, window.extent, strict=True))
    if apart and b.elem_type(dy) == dtypes.FLOAT:
        # with a shape given, the kernel plays no part
        return b.op("MaxUnpool", dy, indices, shape, kernel_shape=(1,) * window.rank)
    size = b.op("ReduceProd", shape, keepdims=1)
    flat = (b.reshape(indices, -1), b.reshape(dy, -1))
    dx = b.op("ScatterElements", b.zeros(size, dy), *flat, reduction="add")
    return b.op("Reshape", dx, shape)


@lowers("AveragePoolGrad", domain="", float_only=True)
def average_pool_grad(b: Builder, node: ir.Node) -> str:
    """dy / count spread over the window it came from."""
    dy = node.inputs[0]
    forward = average_pool_of(b, node)
    x, kernel = forward.inputs[0], tuple(forward.attr("kernel_shape"))
    if is_padded_otherwise(forward, kernel):
        raise Refuse(
            f"{forward.describe()} has auto_pad {forward.attr('auto_pad')} with dilations or with "
            "strides beyond its kernel, which onnxruntime pads in a way of its own: give it pads"
        )
    window = window_of(b, forward, x, kernel)
    kind, part = dtypes.NUMPY[b.elem_type(dy)], 1.0 / math.prod(kernel)
    if _one_window(b, x, window):
        return b.mul(dy, b.const(np.full((1, 1, *kernel), part, kind)))
    if _tiles_exactly(b, x, window):  # 8x64x24x24 in 2x2: 0.06 ms, as ConvTranspose 0.27
        return _enlarged(b, b.mul(dy, part), kernel)
    share = b.mul(dy, _share(b, forward, dy, window))
    planes = b.reshape(share, -1, 1, b.shape_slice(dy, 2, 2 + window.rank))
    ones = b.const(np.ones((1, 1, *kernel), kind))
    return b.reshape_like(spread(b, planes, ones, window, x, 1), x)


def is_padded_otherwise(node: ir.Node, kernel: tuple[int, ...]) -> bool:
    """Whether onnxruntime's SAME pads may not be those of a convolution: a pool's forget its
    dilations, and are below zero where strides jump over what is left."""
    strides = node.attr("strides") or (1, 1)
    jumps = any(k + 1 < stride for k, stride in zip(kernel, strides, strict=False))
    same = (node.attr("auto_pad") or "").startswith("SAME")
    return same and (jumps or max(node.attr("dilations") or (1,)) > 1)


def average_pool_of(b: Builder, node: ir.Node) -> ir.Node:
    """The forward node: dy is named after its output, the gradient node after its name."""
    source = b.producers[node.outputs[0]]  # with the names from before lowering
    y, owner = source.inputs[0].removesuffix("_grad"), source.name.rpartition("_Grad/")[0]
    pools = [forward for forward in b.nodes if forward.op_type == "AveragePool"]
    for forward in pools:
        if forward.outputs[0] == y:
            return forward
    for forward in pools:
        if owner and forward.name == owner:
            return forward
    raise Refuse("the AveragePool it belongs to is not in the graph, so the input's shape is lost")


def _share(b: Builder, forward: ir.Node, dy: str, window: Window) -> str:
    """1 / divisor of each window, (1, 1, spatial...); onnxruntime folds it when sizes are fixed.

    AveragePool of ones is (inputs in the window) / divisor, LpPool of ones counts the inputs.
    """
    x = forward.inputs[0]
    ones = b.op(
        "ConstantOfShape",
        b.concat_ints(1, 1, b.shape_slice(x, 2, 2 + window.rank)),
        elem_type=b.elem_type(dy),
        value=ir.Tensor.of("value", np.ones(1, dtypes.NUMPY[b.elem_type(dy)])),
    )
    attributes = {name: forward.attr(name) for name in _POOL}
    inputs = b.op("LpPool", ones, p=1, **attributes)
    if not forward.attr("count_include_pad", 0):
        return b.op("Reciprocal", inputs)
    return b.div(b.op("AveragePool", ones, count_include_pad=1, **attributes), inputs)


def _unpadded_sizes(b: Builder, x: str, window: Window) -> tuple[int, ...]:
    """The spatial sizes of x where they are known and nothing is padded, else ()."""
    sizes = [size for size in b.dims(x)[2:] if isinstance(size, int)]
    if window.pads is None or any(window.pads) or len(sizes) < window.rank:
        return ()
    return tuple(sizes)


def is_copied(b: Builder, x: str, window: Window) -> bool:
    """Whether every element of dy goes to elements of its own: one pass of onnxruntime."""
    return _one_window(b, x, window) or _tiles_exactly(b, x, window)


def _one_window(b: Builder, x: str, window: Window) -> bool:
    return set(window.dilations) == {1} and _unpadded_sizes(b, x, window) == window.kernel


def _tiles_exactly(b: Builder, x: str, window: Window) -> bool:
    """Whether windows cover the input without gap, overlap or rest."""
    sizes, kernel = _unpadded_sizes(b, x, window), window.kernel or ()
    if not sizes or window.strides != kernel or set(window.dilations) != {1}:
        return False
    return not any(size % k for size, k in zip(sizes, kernel, strict=True))


def _enlarged(b: Builder, dy: str, kernel: tuple[int, ...]) -> str:
    """Every element repeated over its tile."""
    scales = b.const(np.array([1, 1, *kernel], np.float32))
    return b.op(
        "Resize",
        dy,
        "",
        scales,
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )
