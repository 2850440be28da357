"""ConvGrad in standard ops: transposed convolution for the input, matrix products for the weight.

The weight's gradient is a sum over batch and positions of dy times what each kernel tap saw of x.
Three forms of it, the fastest that fits (times in the functions): matrix products of shifted
copies, element products for depthwise kernels, and one convolution with x and dy exchanged.
"""

from __future__ import annotations

import itertools
import math

from edge_train.graph import ir
from edge_train.graph.lowering.builder import Builder
from edge_train.graph.lowering.registry import lowers
from edge_train.graph.lowering.windows import Sizes, Window, padded, spread, tap, window_of

#: beyond these many shifted copies the exchanged convolution takes less memory and fewer nodes
MAX_LAST_TAPS, MAX_OTHER_TAPS = 16, 25

#: depthwise outputs of so few positions are faster as an exchanged convolution (3x3: 1.2 / 1.9 ms)
FEW_POSITIONS = 16


@lowers("ConvGrad")
def conv_grad(b: Builder, node: ir.Node) -> tuple[str, ...]:
    """dX, dW, dB of a convolution of one to three spatial axes."""
    dy, x, w = node.inputs
    group = node.attr("group", 1)
    window = window_of(b, node, x, _kernel_of(b, node, w))
    dx = _input_gradient(b, dy, x, w, window, group) if node.output(0) else ""
    dw = _weight_gradient(b, dy, x, w, window, group) if node.output(1) else ""
    db = b.sum(dy, (0, *window.axes), keepdims=False) if node.output(2) else ""
    return dx, dw, db


def _kernel_of(b: Builder, node: ir.Node, w: str) -> Sizes | None:
    declared = node.attr("kernel_shape")
    if declared:
        return tuple(declared)
    sizes = tuple(size for size in b.dims(w)[2:] if isinstance(size, int))
    return sizes if len(sizes) == b.rank(w) - 2 else None


def _input_gradient(b: Builder, dy: str, x: str, w: str, window: Window, group: int) -> str:
    if window.is_plain and group == 1:  # faster than ConvTranspose and MatMul by 10 %
        return b.op("Conv", dy, _swap(b, w, b.rank(w)))
    return spread(b, dy, w, window, x, group)


def _swap(b: Builder, x: str, rank: int) -> str:
    """``x`` with its first two axes exchanged."""
    return b.transpose(x, 1, 0, *range(2, rank))


def _weight_gradient(b: Builder, dy: str, x: str, w: str, window: Window, group: int) -> str:
    few_taps = (
        window.kernel is not None
        and window.kernel[-1] <= MAX_LAST_TAPS
        and math.prod(window.kernel[:-1]) <= MAX_OTHER_TAPS
    )
    if few_taps and group == 1:
        return _dense_weight_gradient(b, dy, x, w, window)
    if few_taps and _is_depthwise(b, dy, x, w, window, group):
        return _depthwise_weight_gradient(b, dy, x, w, window)
    return _exchanged_weight_gradient(b, dy, x, w, window, group)


def _is_depthwise(b: Builder, dy: str, x: str, w: str, window: Window, group: int) -> bool:
    """One input and one output channel a group, stride 1, and enough positions to pay."""
    if b.dims(w)[:2] != (group, 1) or set(window.strides) != {1}:
        return False
    sizes = b.dims(dy)[2:]
    return math.prod(s if isinstance(s, int) else FEW_POSITIONS + 1 for s in sizes) > FEW_POSITIONS


def _dense_weight_gradient(b: Builder, dy: str, x: str, w: str, window: Window) -> str:
    """Copies shifted along the last axis, stacked as channels; a product for each other shift.

    3x3, 8x64x24x24, 64 filters, one thread: 5.2 ms (exchanged 10.8, all nine stacked 6.7).
    """
    rank, folded = b.rank(x), _fold_pays(b, dy, w)
    channels = 0 if folded else 1
    seen = padded(b, _swap(b, x, rank) if folded else x, window)
    last, others = window.rank - 1, tuple(range(window.rank - 1))
    kernel = window.kernel or ()
    rows = [tap(b, seen, window, (last,), (at,)) for at in range(kernel[last])]
    stack = rows[0] if len(rows) == 1 else b.op("Concat", *rows, axis=channels)
    flat = (0, -1) if folded else (0, 0, -1)
    dy_flat = b.reshape(_swap(b, dy, rank) if folded else dy, *flat)
    products = []
    for at in itertools.product(*(range(kernel[axis]) for axis in others)):
        shifted = b.reshape(tap(b, stack, window, others, at), *flat)
        products.append(_contract(b, dy_flat, shifted, folded))
    dw = products[0] if len(products) == 1 else b.op("Concat", *products, axis=len(flat) - 1)
    if not folded:
        dw = b.sum(dw, (0,), keepdims=False)
    taps = math.prod(kernel)
    if taps > 1:  # (Co, taps * Ci) -> (Co, Ci, taps)
        dw = b.transpose(b.reshape(dw, 0, taps, -1), 0, 2, 1)
    return b.reshape_like(dw, w)


def _contract(b: Builder, dy: str, seen: str, folded: bool) -> str:
    """dy (..., Co, S) times seen (..., C, S), summed over S."""
    if folded:
        return b.op("Gemm", dy, seen, transB=1)
    return b.op("MatMul", dy, b.transpose(seen, 0, 2, 1))


def _fold_pays(b: Builder, dy: str, w: str) -> bool:
    """Whether putting the batch into the product costs less than summing a product a sample.

    1x1, batch 8: at 24x24 a product a sample wins (64 channels: 0.47 / 0.57 ms).
    """
    positions, weights = b.dims(dy)[2:], b.dims(w)
    if not all(isinstance(size, int) for size in (*positions, *weights)):
        return False
    known = [int(size) for size in weights if size is not None]
    moved = math.prod(int(size) for size in positions if size is not None) * (known[0] + known[1])
    return moved < math.prod(known)


def _depthwise_weight_gradient(b: Builder, dy: str, x: str, w: str, window: Window) -> str:
    """An element product and a sum for each tap: 3x3, 8x144x24x24 3.3 ms (exchanged 10.1)."""
    seen, kernel = padded(b, x, window), window.kernel or ()
    last, others = window.rank - 1, tuple(range(window.rank - 1))
    columns = [tap(b, seen, window, (last,), (at,)) for at in range(kernel[last])]
    sums = []
    for *at, column in itertools.product(*(range(size) for size in kernel)):
        shifted = tap(b, columns[column], window, others, at)
        sums.append(b.sum(b.mul(shifted, dy), window.axes))
    stack = sums[0] if len(sums) == 1 else b.op("Concat", *sums, axis=2)
    return b.reshape_like(b.sum(stack, (0,)), w)


def _exchanged_weight_gradient(
    b: Builder, dy: str, x: str, w: str, window: Window, group: int
) -> str:
    """x convolved with dy: the batch is the channel, strides and dilations change places."""
    rank, axes = b.rank(x), tuple(range(2, b.rank(x)))
    seen = x if window.pads is not None else padded(b, x, window)
    if group == 1:
        data = _swap(b, seen, rank)
    else:  # (N, G * Ci, ...) -> (Ci, G * N, ...)
        ci = b.shape_slice(w, 1, 2)
        if b.dims(w)[1] == 1:
            data = _swap(b, seen, rank)
        else:
            split = b.reshape(seen, 0, group, ci, -1)
            data = b.transpose(split, 2, 1, 0, 3)
        data = b.reshape(data, ci, -1, b.shape_slice(seen, 2, rank))
    dw = b.op(
        "Conv",
        data,
        _swap(b, dy, rank),
        group=group,
        strides=window.dilations,
        dilations=window.strides,
        pads=window.pads,
    )  # (Ci, G * Co, kernel...), longer by the taps that would fit into the slack
    pairs = zip(window.slack, window.dilations, strict=True)
    if not all(s is not None and s < d for s, d in pairs):
        starts = b.ints(*(0,) * len(axes))
        dw = b.op("Slice", dw, starts, b.shape_slice(w, 2, rank), b.ints(*axes))
    return _swap(b, dw, rank)
