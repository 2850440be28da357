"""ConvGrad in standard ops: transposed convolution for the input, matrix products for the weight.

The weight's gradient is a sum over batch and positions of dy times what each kernel tap saw of x.
Three forms of it, the fastest that fits (times in the functions): matrix products of shifted
copies, element products for depthwise kernels, and one convolution with x and dy exchanged.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from edge_train.graph import ir
from edge_train.graph.lowering.builder import Builder
from edge_train.graph.lowering.registry import lowers
from edge_train.graph.lowering.windows import (
    Sizes,
    Window,
    last_axis_taps,
    padded,
    spread,
    tap,
    window_of,
)

#: beyond these many shifted copies the exchanged convolution takes less memory and fewer nodes
MAX_LAST_TAPS, MAX_OTHER_TAPS = 16, 25

#: a depthwise kernel with at most so many output positions is faster as an exchanged convolution
#: (3x3: 960 channels 3x3 1.2 / 1.9 ms; stride 2, 192 channels 6x6 1.1 / 1.4, 144 12x12 3.2 / 2.3)
FEW_POSITIONS, FEW_STRIDED_POSITIONS = 16, 64


@lowers("ConvGrad", float_only=True)
def conv_grad(b: Builder, node: ir.Node) -> tuple[str, ...]:
    """dX, dW, dB of a convolution of one to three spatial axes."""
    dy, x, w = node.inputs
    group = node.attr("group", 1)
    window = window_of(b, node, x, kernel_of(b, node, w))
    dx = _input_gradient(b, dy, x, w, window, group) if node.output(0) else ""
    dw = weight_gradient(b, dy, x, w, window, group) if node.output(1) else ""
    db = b.sum(dy, (0, *window.axes), keepdims=False) if node.output(2) else ""
    return dx, dw, db


def kernel_of(b: Builder, node: ir.Node, w: str) -> Sizes | None:
    """The sizes of a kernel; None where only the run tells them."""
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


def weight_gradient(b: Builder, dy: str, x: str, w: str, window: Window, group: int) -> str:
    """The gradient of the weight ``w`` (Co, Ci / group, kernel...) of a convolution of ``x``."""
    few_taps = (
        window.kernel is not None
        and window.kernel[-1] <= MAX_LAST_TAPS
        and math.prod(window.kernel[:-1]) <= MAX_OTHER_TAPS
    )
    if few_taps and _is_depthwise(b, w, group):
        if _many_positions(b, dy, window):
            return _depthwise_weight_gradient(b, dy, x, w, window)
    elif few_taps and (group == 1 or _filters(b, w)):
        return _dense_weight_gradient(b, dy, x, w, window, group)
    return _exchanged_weight_gradient(b, dy, x, w, window, group)


def _filters(b: Builder, w: str) -> int:
    """The number of output channels; 0 where only the run tells."""
    count = b.dims(w)[0]
    return count if isinstance(count, int) else 0


def _sizes_of(b: Builder, x: str, *axes: int) -> list[str | int]:
    return [b.shape_slice(x, axis, axis + 1) for axis in axes]


def _is_depthwise(b: Builder, w: str, group: int) -> bool:
    """One input and one output channel a group."""
    return group > 1 and b.dims(w)[:2] == (group, 1)


def _many_positions(b: Builder, dy: str, window: Window) -> bool:
    sizes = (b.shapes.dims(dy) or (None,))[2:]
    known = [size for size in sizes if isinstance(size, int)]
    if not known or len(known) < len(sizes):  # strided taps are slow where sizes are not known
        return set(window.strides) == {1}
    few = FEW_POSITIONS if set(window.strides) == {1} else FEW_STRIDED_POSITIONS
    return math.prod(known) > few


def _dense_weight_gradient(b: Builder, dy: str, x: str, w: str, window: Window, group: int) -> str:
    """Copies shifted along the last axis, stacked as channels; a product for each other shift.

    3x3, 8x64x24x24, 64 filters, one thread: 5.3 ms (exchanged 10.7, all nine stacked 6.7).
    """
    rank, sizes, ci = b.rank(x), b.dims(x)[2:], b.shape_slice(w, 1, 2)
    front = _sizes_of(b, x, 0, 1)
    folded = group == 1 and _fold_pays(b, dy, w)
    if folded:
        dy, x, front = _swap(b, dy, rank), _swap(b, x, rank), front[::-1]
    elif group > 1:
        front = [front[0], group, ci]
        dy = b.reshape(dy, 0, group, _filters(b, w) // group, -1)
        x = b.reshape(x, *front, b.shape_slice(x, 2, rank))
    lead, channels = len(front), 0 if folded else len(front) - 1
    flat = (*(0,) * (channels + 1), -1)
    dy = dy if group > 1 else b.reshape(dy, *flat)
    products = []
    for seen in _stacked_taps(b, x, window, sizes, front, channels):
        products.append(_contract(b, dy, b.reshape(seen, *flat), folded, lead))
    dw = products[0] if len(products) == 1 else b.op("Concat", *products, axis=channels + 1)
    if not folded:
        dw = b.sum(dw, (0,), keepdims=False)
    taps = math.prod(window.kernel or ())
    if taps > 1:  # (Co, taps * Ci) -> (Co, Ci, taps)
        dw = b.transpose(b.reshape(dw, -1, taps, ci), 0, 2, 1)
    return b.reshape_like(dw, w)


def _stacked_taps(
    b: Builder,
    x: str,
    window: Window,
    sizes: Sequence[ir.Dim],
    front: Sequence[str | int],
    channels: int,
) -> list[str]:
    """For each shift along the other axes, all last-axis taps of it on the channel axis."""
    kernel, last, lead = window.kernel or (), window.rank - 1, len(front)
    if set(kernel) == {1}:
        every = [(axis, 0) for axis in range(window.rank)]
        return [tap(b, padded(b, x, window, lead), window, every, lead)]
    rows = last_axis_taps(b, x, window, sizes, front)
    stack = rows[0] if len(rows) == 1 else b.op("Concat", *rows, axis=channels)
    others = itertools.product(*(range(size) for size in kernel[:last]))
    return [tap(b, stack, window, list(enumerate(at)), lead) for at in others]


def _contract(b: Builder, dy: str, seen: str, folded: bool, lead: int) -> str:
    """dy (..., Co, S) times seen (..., C, S), summed over S."""
    if folded:
        return b.op("Gemm", dy, seen, transB=1)
    return b.op("MatMul", dy, b.transpose(seen, *range(lead - 1), lead, lead - 1))


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
    kernel = window.kernel or ()
    columns = last_axis_taps(b, x, window, b.dims(x)[2:], _sizes_of(b, x, 0, 1))
    sums = []
    for *at, column in itertools.product(*(range(size) for size in kernel)):
        shifted = tap(b, columns[column], window, list(enumerate(at)))
        sums.append(b.sum(b.mul(shifted, dy), window.axes))
    stack = sums[0] if len(sums) == 1 else b.op("Concat", *sums, axis=2)
    return b.reshape_like(b.sum(stack, (0,)), w)


def _exchanged_weight_gradient(
    b: Builder, dy: str, x: str, w: str, window: Window, group: int
) -> str:
    """x convolved with dy: the batch is the channel, strides and dilations change places."""
    rank, axes = b.rank(x), tuple(range(2, b.rank(x)))
    pads = window.pads
    if pads is None or min(pads) < 0:  # Conv takes neither
        seen, pads = padded(b, x, window), None
    else:
        seen = x
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
        pads=pads,
    )  # (Ci, G * Co, kernel...), longer by the taps that would fit into the slack
    pairs = zip(window.slack, window.dilations, strict=True)
    if not all(s is not None and s < d for s, d in pairs):
        starts = b.ints(*(0,) * len(axes))
        dw = b.op("Slice", dw, starts, b.shape_slice(w, 2, rank), b.ints(*axes))
    return _swap(b, dw, rank)
