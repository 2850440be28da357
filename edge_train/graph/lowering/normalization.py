"""Batch, layer and RMS normalisation in standard ops: forward in training mode, and backward.

Statistics take two passes (mean, then the mean square of x - mean): no cancellation. Affine steps a
channel go through BatchNormalization in inference form, which is one pass over memory.
"""

from __future__ import annotations

import math

import numpy as np

from edge_train import dtypes
from edge_train.graph import ir
from edge_train.graph.lowering.builder import Builder
from edge_train.graph.lowering.registry import lowers

_EPSILON = 1e-5


@lowers("BatchNormInternal")
def batch_norm_internal(b: Builder, node: ir.Node) -> tuple[str, ...]:
    """Y, running mean and variance (they replace the state), batch mean and 1 / std."""
    if not node.attr("training_mode", 1):
        return (_inference(b, node), "", "", "", "")
    x, scale, bias = node.inputs[:3]
    y, mean, var = _normalized(b, x, scale, bias, node.attr("epsilon", _EPSILON))
    moved = _moved_statistics(b, node, (mean, var))
    for state, new in zip(b.node.inputs[3:5], moved, strict=True):
        b.updates[state] = b.cast_like(new, state)
    inv_std = b.op("Reciprocal", b.op("Sqrt", b.add(var, node.attr("epsilon", _EPSILON))))
    return (y, *moved, mean, inv_std)


@lowers("BatchNormalization", domain="")
def batch_normalization(b: Builder, node: ir.Node) -> tuple[str, ...]:
    """The stock op; in training mode made of other ops.

    Stock training mode writes into the arrays that the caller fed, and into shared constants.
    """
    if not node.attr("training_mode", 0):
        # eval graphs of models exported in training mode keep the two statistics as outputs
        return (_inference(b, node), *node.inputs[3:5])
    x, scale, bias, *_ = node.inputs
    y, mean, var = _normalized(b, x, scale, bias, node.attr("epsilon", _EPSILON))
    return (y, *_moved_statistics(b, node, (mean, var)))


def _inference(b: Builder, node: ir.Node) -> str:
    return b.op("BatchNormalization", *node.inputs, epsilon=node.attr("epsilon", _EPSILON))


def _moved_statistics(b: Builder, node: ir.Node, batch: tuple[str, str]) -> list[str]:
    """momentum * old + (1 - momentum) * batch, for the mean and the (biased) variance."""
    momentum = node.attr("momentum", 0.9)
    pairs = zip(node.inputs[3:5], batch, strict=True)
    return [b.add(b.mul(old, momentum), b.mul(new, 1.0 - momentum)) for old, new in pairs]


def _normalized(b: Builder, x: str, scale: str, bias: str, epsilon: float) -> tuple[str, str, str]:
    """Y, mean and biased variance (C,) of a batch (N, C, ...)."""
    axes = _batch_axes(b, x)
    mean = b.mean(x, axes, keepdims=False)
    centred = _centred(b, x, mean)
    var = b.mean(b.mul(centred, centred), axes, keepdims=False)
    zero = _per_channel(b, scale, 0.0)
    y = b.op("BatchNormalization", centred, scale, bias, zero, var, epsilon=epsilon)
    return y, mean, var


def _batch_axes(b: Builder, x: str) -> tuple[int, ...]:
    """Every axis of (N, C, ...) but the channel's."""
    return (0, *range(2, b.rank(x)))


def _centred(b: Builder, x: str, mean: str) -> str:
    """x - mean; forward and backward write the same nodes, so onnxruntime computes it once."""
    return b.sub(x, b.reshape(mean, -1, *(1,) * (b.rank(x) - 2)))


def _per_channel(b: Builder, like: str, value: float) -> str:
    """A vector of the size and dtype of ``like``."""
    (size,) = b.dims(like)
    kind = dtypes.NUMPY[b.elem_type(like)]
    if isinstance(size, int):
        return b.const(np.full(size, value, kind))
    return b.op(
        "ConstantOfShape",
        b.shape(like),
        elem_type=b.elem_type(like),
        value=ir.Tensor.of("value", np.full(1, value, kind)),
    )


@lowers("BatchNormalizationGrad")
def batch_normalization_grad(b: Builder, node: ir.Node) -> tuple[str, ...]:
    """dX = scale / std * (dY - mean(dY) - x_hat * mean(dY * x_hat)), dScale, dB."""
    dy, x, scale, mean, inv_std = node.inputs
    axes = _batch_axes(b, x)
    centred = _centred(b, x, mean)
    mean_dy = b.mean(dy, axes, keepdims=False)
    mean_dy_xhat = b.mul(b.mean(b.mul(dy, centred), axes, keepdims=False), inv_std)
    gain = b.mul(scale, inv_std)
    zero, one = _per_channel(b, scale, 0.0), _per_channel(b, scale, 1.0)
    # gain * dy - gain * mean(dy), and -gain / std * mean(dy * x_hat) * (x - mean)
    shift = b.neg(b.mul(gain, mean_dy))
    slope = b.neg(b.mul(b.mul(gain, inv_std), mean_dy_xhat))
    direct = b.op("BatchNormalization", dy, gain, shift, zero, one, epsilon=0.0)
    through = b.op("BatchNormalization", centred, slope, zero, zero, one, epsilon=0.0)
    count = _values_per_channel(b, x, scale)
    return b.add(direct, through), b.mul(mean_dy_xhat, count), b.mul(mean_dy, count)


def _values_per_channel(b: Builder, x: str, scale: str) -> float | str:
    sizes = [size for axis, size in enumerate(b.dims(x)) if axis != 1]
    known = [size for size in sizes if isinstance(size, int)]
    if len(known) == len(sizes):
        return float(math.prod(known))
    total, channels = (b.op("Size", name, elem_type=dtypes.INT64) for name in (x, scale))
    return b.cast_like(b.div(total, channels), scale)


@lowers("LayerNormalizationGrad")
def layer_normalization_grad(b: Builder, node: ir.Node) -> tuple[str, ...]:
    """dX, dScale, dB of a layer normalisation over the axes from ``axis`` on."""
    x, *stats = node.inputs[1], *node.inputs[3:]
    mean, inv_std = (b.cast_like(name, x) for name in stats)  # float32 beside a double x
    return _layer_gradients(b, node, b.mul(b.sub(x, mean), inv_std), inv_std)


@lowers("InvertibleLayerNormalizationGrad")
def invertible_layer_normalization_grad(b: Builder, node: ir.Node) -> tuple[str, ...]:
    """The same from the output: x_hat = (Y - bias) / scale."""
    _, y, scale, bias, inv_std = node.inputs
    xhat = b.div(b.sub(y, bias), scale)
    return _layer_gradients(b, node, xhat, b.cast_like(inv_std, y))


def _layer_gradients(b: Builder, node: ir.Node, xhat: str, inv_std: str) -> tuple[str, ...]:
    dy, x, scale = node.inputs[:3]
    over, batch = _split_axes(b, node, x)
    dx = ""
    if node.output(0):
        g = b.mul(dy, scale)
        rest = b.sub(b.sub(g, b.mean(g, over)), b.mul(xhat, b.mean(b.mul(g, xhat), over)))
        dx = b.mul(rest, inv_std)
    dscale = b.sum(b.mul(dy, xhat), batch, keepdims=False) if node.output(1) else ""
    db = b.sum(dy, batch, keepdims=False) if node.output(2) else ""
    return dx, dscale, db


def _split_axes(b: Builder, node: ir.Node, x: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The normalised axes, and those before them."""
    rank = b.rank(x)
    first = node.attr("axis", -1) % rank
    return tuple(range(first, rank)), tuple(range(first))


@lowers("SimplifiedLayerNormalization", domain="")
def simplified_layer_normalization(b: Builder, node: ir.Node) -> tuple[str, str]:
    """x / rms(x) * scale, and 1 / rms(x)."""
    x, scale = node.inputs
    over, _ = _split_axes(b, node, x)
    mean_square = b.add(b.mean(b.mul(x, x), over), node.attr("epsilon", _EPSILON))
    inv_rms = b.op("Reciprocal", b.op("Sqrt", mean_square))
    return b.mul(b.mul(x, inv_rms), scale), inv_rms


@lowers("SimplifiedLayerNormalizationGrad")
def simplified_layer_normalization_grad(b: Builder, node: ir.Node) -> tuple[str, ...]:
    """dX and dScale of an RMS normalisation over the axes from ``axis`` on."""
    dy, x, scale, inv_rms = node.inputs
    inv_rms = b.cast_like(inv_rms, x)
    xhat = b.mul(x, inv_rms)
    over, batch = _split_axes(b, node, x)
    dx = ""
    if node.output(0):
        g = b.mul(dy, scale)
        dx = b.mul(b.sub(g, b.mul(xhat, b.mean(b.mul(g, xhat), over))), inv_rms)
    return dx, b.sum(b.mul(dy, xhat), batch, keepdims=False) if node.output(1) else ""
