"""Shape rules of network layers: products, convolutions, pools, normalisations, losses, RNNs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from edge_train import dtypes
from edge_train.graph import ir
from edge_train.graph.equations import explicit_terms
from edge_train.graph.shape_rules import (
    Dims,
    Fact,
    Facts,
    axis_of,
    broadcast,
    broadcast_dim,
    like,
    rule,
)

if TYPE_CHECKING:
    from edge_train.graph.shapes import Shapes


@rule("Gemm")
def _gemm(s: Shapes, node: ir.Node) -> Facts:
    elem_type, a = like(s, node.input(0))
    b = s.dims(node.input(1))
    rows = a[1 if node.attr("transA", 0) else 0] if a else None
    columns = b[0 if node.attr("transB", 0) else 1] if b else None
    return [(elem_type, (rows, columns))]


@rule("MatMul", "FusedMatMul")
def _matmul(s: Shapes, node: ir.Node) -> Facts:
    elem_type, a = like(s, node.input(0))
    b = s.dims(node.input(1))
    if a is None or b is None or node.attr("transBatchA", 0) or node.attr("transBatchB", 0):
        return [(elem_type, (None,) * len(a) if a and b and len(a) == len(b) else None)]
    a, b = _swapped(a, node.attr("transA", 0)), _swapped(b, node.attr("transB", 0))
    rows = a[-2:-1]  # () for a vector
    columns = b[-1:] if len(b) > 1 else ()
    return [(elem_type, (*(broadcast([a[:-2], b[:-2]]) or ()), *rows, *columns))]


@rule("MatMulBnb4")
def _matmul_4bit(s: Shapes, node: ir.Node) -> Facts:
    elem_type, a = like(s, node.input(0))
    columns = node.attr("N" if node.attr("transB", 1) else "K")
    return [(elem_type, None if a is None else (*a[:-1], columns))]


def _swapped(dims: Dims, swap: int) -> Dims:
    return (*dims[:-2], dims[-1], dims[-2]) if swap and len(dims) > 1 else dims


@rule("Einsum")
def _einsum(s: Shapes, node: ir.Node) -> Facts:
    elem_type = s.elem_type(node.input(0))
    shapes = [s.dims(name) for name in node.inputs]
    known = [dims for dims in shapes if dims is not None]
    if len(known) < len(shapes):
        return [(elem_type, None)]
    terms, result = explicit_terms(node.attr("equation"), [len(dims) for dims in known])
    sizes: dict[str, list[ir.Dim]] = {}
    for letters, dims in zip(terms, known, strict=True):
        for letter, dim in zip(letters, dims, strict=True):
            sizes.setdefault(letter, []).append(dim)
    return [(elem_type, tuple([broadcast_dim(sizes[letter]) for letter in result]))]


# --- windows -----------------------------------------------------------------------------------


def _windows(node: ir.Node, sizes: Dims, kernel: Dims) -> Dims:
    """Spatial sizes after a convolution or pool."""
    count = len(sizes)
    strides = node.attr("strides") or (1,) * count
    dilations = node.attr("dilations") or (1,) * count
    pads = node.attr("pads") or (0,) * 2 * count
    auto = node.attr("auto_pad", "NOTSET")
    result: list[ir.Dim] = []
    for i, (size, k) in enumerate(zip(sizes, kernel, strict=True)):
        if not isinstance(size, int) or not isinstance(k, int):
            result.append(None)
        elif auto in ("SAME_UPPER", "SAME_LOWER"):
            # onnxruntime's pools forget the dilation
            result.append(-(-size // strides[i]) if dilations[i] == 1 else None)
        else:
            pad = 0 if auto == "VALID" else pads[i] + pads[count + i]
            room = size + pad - dilations[i] * (k - 1) - 1
            steps = _steps(room, strides[i], node.attr("ceil_mode", 0), size + pads[i])
            result.append(steps if room >= 0 else None)
    return tuple(result)


def _steps(room: int, stride: int, ceil_mode: int, start_limit: int) -> int:
    if not ceil_mode:
        return room // stride + 1
    count = -(-room // stride) + 1
    # a window that would start in the padding behind the data is left out
    return count - 1 if (count - 1) * stride >= start_limit else count


@rule("Conv")
def _conv(s: Shapes, node: ir.Node) -> Facts:
    elem_type, x = like(s, node.input(0))
    w = s.dims(node.input(1))
    rank = len(x) if x is not None else len(w) if w is not None else None
    if rank is None:
        return [(elem_type, None)]
    x, w = x or (None,) * rank, w or (None,) * rank
    return [(elem_type, (x[0], w[0], *_windows(node, x[2:], node.attr("kernel_shape") or w[2:])))]


@rule("ConvTranspose")
def _conv_transpose(s: Shapes, node: ir.Node) -> Facts:
    elem_type, x = like(s, node.input(0))
    w = s.dims(node.input(1))
    if x is None or w is None:
        return [(elem_type, None)]
    group = node.attr("group", 1)
    channels = w[1] * group if isinstance(w[1], int) else None
    return [(elem_type, (x[0], channels, *_unfolded(node, x[2:], w[2:])))]


def _unfolded(node: ir.Node, sizes: Dims, kernel: Dims) -> Dims:
    """Spatial sizes after a transposed convolution."""
    count = len(sizes)
    given = node.attr("output_shape")
    if given:
        return tuple(given[-count:])

    def attr(name: str, default: int) -> Any:
        return node.attr(name) or (default,) * count

    strides, dilations, extra = attr("strides", 1), attr("dilations", 1), attr("output_padding", 0)
    pads = node.attr("pads") or (0,) * 2 * count
    auto = node.attr("auto_pad", "NOTSET")
    result: list[ir.Dim] = []
    for i, (size, k) in enumerate(zip(sizes, kernel, strict=True)):
        if not isinstance(size, int) or not isinstance(k, int):
            result.append(None)
        else:
            grown = strides[i] * (size - 1) + extra[i] + (k - 1) * dilations[i] + 1
            if auto in ("SAME_UPPER", "SAME_LOWER"):
                result.append(min(grown, size * strides[i]))
            else:
                result.append(grown - (0 if auto == "VALID" else pads[i] + pads[count + i]))
    return tuple(result)


@rule("ConvGrad", "ConvTransposeGrad")
def _conv_grad(s: Shapes, node: ir.Node) -> Facts:
    x, (elem_type, w) = like(s, node.input(1)), like(s, node.input(2))
    dy = s.dims(node.input(0))
    channels = dy[1] if dy is not None else None
    if node.op_type == "ConvGrad" and w is not None:
        channels = w[0]
    return [x, (elem_type, w), (elem_type, (channels,))]


@rule("MaxPool", "AveragePool", "LpPool")
def _pool(s: Shapes, node: ir.Node) -> Facts:
    elem_type, x = like(s, node.input(0))
    kernel = node.attr("kernel_shape")
    if x is None:
        dims: Dims = (None,) * (len(kernel) + 2)
    else:
        dims = (*x[:2], *_windows(node, x[2:], kernel))
    return [(elem_type, dims), (dtypes.INT64, dims)]


@rule("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def _global_pool(s: Shapes, node: ir.Node) -> Facts:
    elem_type, x = like(s, node.input(0))
    return [(elem_type, None if x is None else (*x[:2], *(1,) * (len(x) - 2)))]


@rule("MaxUnpool")
def _unpool(s: Shapes, node: ir.Node) -> Facts:
    elem_type, x = like(s, node.input(0))
    if x is None:
        return [(elem_type, None)]
    if node.input(2):
        return [(elem_type, s.contents(node.input(2)) or (None,) * len(x))]
    return [(elem_type, (*x[:2], *_unfolded(node, x[2:], node.attr("kernel_shape"))))]


@rule("MaxPoolGrad", "AveragePoolGrad")
def _pool_grad(s: Shapes, node: ir.Node) -> Facts:
    elem_type, dy = like(s, node.input(0))
    forward = s.producer(node.input(1))  # MaxPoolGrad's indices come from its MaxPool
    if forward is not None and forward.op_type == "MaxPool":
        return [(elem_type, s.dims(forward.input(0)))]
    return [(elem_type, None if dy is None else (*dy[:2], *(None,) * (len(dy) - 2)))]


# --- resampling --------------------------------------------------------------------------------


@rule("Resize", "Upsample")
def _resize(s: Shapes, node: ir.Node) -> Facts:
    elem_type, x = like(s, node.input(0))
    if x is None:
        return [(elem_type, None)]
    axes = [axis_of(axis, len(x)) for axis in node.attr("axes") or range(len(x))]
    found: dict[int, ir.Dim] = dict.fromkeys(axes)
    sizes, scales = s.contents(node.input(3)), _scales(s, node)
    if scales:
        found = {axis: _scaled(x[axis], scale) for axis, scale in zip(axes, scales, strict=True)}
    elif sizes and node.attr("keep_aspect_ratio_policy", "stretch") == "stretch":
        found = dict(zip(axes, sizes, strict=True))
    elif len(x) > 2:
        found[0] = x[0]  # samples are not resized
    return [(elem_type, tuple([found.get(axis, dim) for axis, dim in enumerate(x)]))]


def _scales(s: Shapes, node: ir.Node) -> tuple[float, ...] | None:
    if node.op_type == "Upsample" and "scales" in node.attributes:
        return tuple(node.attr("scales"))
    return s.floats(node.input(1 if node.op_type == "Upsample" else 2))


def _scaled(size: ir.Dim, scale: float) -> ir.Dim:
    """In float32, as onnxruntime multiplies."""
    if scale == 1:
        return size
    return int(np.float32(size) * np.float32(scale)) if isinstance(size, int) else None


@rule("DepthToSpace", "SpaceToDepth")
def _blocks(s: Shapes, node: ir.Node) -> Facts:
    elem_type, x = like(s, node.input(0))
    if x is None:
        return [(elem_type, None)]
    block = node.attr("blocksize")
    channels, height, width = (size if isinstance(size, int) else None for size in x[1:])
    grown = node.op_type == "SpaceToDepth"
    made = [channels and (channels * block**2 if grown else channels // block**2)]
    made += [size and (size // block if grown else size * block) for size in (height, width)]
    return [(elem_type, (x[0], *made))]


# --- normalisations and losses -----------------------------------------------------------------


@rule("LayerNormalization", "SimplifiedLayerNormalization")
def _layer_norm(s: Shapes, node: ir.Node) -> Facts:
    elem_type, x = like(s, node.input(0))
    stats: Dims | None = None
    if x is not None:
        axis = axis_of(node.attr("axis", -1), len(x))
        stats = (*x[:axis], *(1,) * (len(x) - axis))
    return [(elem_type, x), (dtypes.FLOAT, stats), (dtypes.FLOAT, stats)]


@rule(
    "NegativeLogLikelihoodLoss",
    "NegativeLogLikelihoodLossInternal",
    "NegativeLogLikelihoodLossInternal2",
    "SoftmaxCrossEntropyLoss",
    "SoftmaxCrossEntropyLossInternal",
    "SparseSoftmaxCrossEntropy",
    "SoftmaxCrossEntropy",
)
def _loss(s: Shapes, node: ir.Node) -> Facts:
    elem_type, scores = like(s, node.input(0))
    each = s.dims(node.input(1))
    if node.op_type == "SoftmaxCrossEntropy" and each is not None:
        each = each[:-1]  # its labels are distributions over the classes
    whole = node.attr("reduction", "mean") != "none"
    return [(elem_type, () if whole else each), (elem_type, scores)]


# --- recurrent layers --------------------------------------------------------------------------


def _recurrent(s: Shapes, node: ir.Node) -> tuple[int | None, ir.Dim, ir.Dim, int, ir.Dim]:
    """Element type, sequence length, batch, directions, hidden size."""
    elem_type, x = like(s, node.input(0))
    length, batch = (x[0], x[1]) if x else (None, None)
    if node.attr("layout", 0):
        length, batch = batch, length
    directions = 2 if node.attr("direction", "forward") == "bidirectional" else 1
    r = s.dims(node.input(2))
    return elem_type, length, batch, directions, node.attr("hidden_size") or (r[2] if r else None)


@rule("LSTM", "GRU", "RNN")
def _rnn(s: Shapes, node: ir.Node) -> Facts:
    elem_type, length, batch, directions, hidden = _recurrent(s, node)
    all_dims: Dims = (length, directions, batch, hidden)
    last_dims: Dims = (directions, batch, hidden)
    if node.attr("layout", 0):
        all_dims, last_dims = (batch, length, directions, hidden), (batch, directions, hidden)
    return [(elem_type, all_dims), (elem_type, last_dims), (elem_type, last_dims)]


@rule("LSTMTraining", "GRUTraining")
def _rnn_training(s: Shapes, node: ir.Node) -> Facts:
    elem_type, length, batch, directions, hidden = _recurrent(s, node)

    def sequence(gates: int) -> tuple[int | None, Dims]:
        width = hidden * gates if isinstance(hidden, int) else None
        return elem_type, (length, directions, batch, width)

    last = (elem_type, (directions, batch, hidden))
    if node.op_type == "GRUTraining":
        return [sequence(1), last, sequence(3)]
    return [sequence(1), last, last, sequence(1), sequence(4)]


@rule("LSTMGrad")
def _lstm_grad(s: Shapes, node: ir.Node) -> Facts:
    elem_type, r = like(s, node.input(2))
    directions, hidden = (r[0], r[2]) if r else (None, None)
    bias, peephole = (hidden * n if isinstance(hidden, int) else None for n in (8, 3))
    return [
        *(like(s, node.input(i)) for i in (0, 1, 2)),
        (elem_type, (directions, bias)),
        *(like(s, node.input(i)) for i in (4, 5)),
        (elem_type, (directions, peephole)),
    ]


# --- control flow ------------------------------------------------------------------------------


@rule("If")
def _if(s: Shapes, node: ir.Node) -> Facts:
    bodies = list(ir.subgraphs(node))
    known = [type(s).of(body, outer=s) for body in bodies]
    branches = [
        [like(inner, value.name) for value in body.outputs]
        for inner, body in zip(known, bodies, strict=True)
    ]
    return [_either(*facts) for facts in zip(*branches, strict=True)]


def _either(a: Fact, b: Fact) -> Fact:
    elem_type = a[0] if a[0] == b[0] else None
    if a[1] is None or b[1] is None or len(a[1]) != len(b[1]):
        return elem_type, None
    pairs = zip(a[1], b[1], strict=True)
    return elem_type, tuple([x if x == y else None for x, y in pairs])
