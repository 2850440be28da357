"""Normalisations. With x_hat the normalised x, 1/std its slope and g the gradient of x_hat:
dX = 1/std (g - mean(g) - x_hat mean(g x_hat)), the means over what was normalised together.
"""

from __future__ import annotations

from collections.abc import Sequence

from edge_train import dtypes
from edge_train.graph import ir
from edge_train.graph.broadcast import unbroadcast
from edge_train.graph.gradients.builder import Gradients
from edge_train.graph.gradients.registry import gradient

_EPSILON = 1e-5


@gradient("BatchNormInternal", domain=ir.MICROSOFT, cut=(3, 4))
def batch_norm(g: Gradients, node: ir.Node, dy: str, *unused: str) -> Sequence[str]:
    """In training mode; prepare/training_mode.py put it in the place of BatchNormalization."""
    inputs = (dy, node.inputs[0], node.inputs[1], node.outputs[3], node.outputs[4])
    epsilon = node.attr("epsilon", _EPSILON)
    return g.training_op("BatchNormalizationGrad", *inputs, makes=(True,) * 3, epsilon=epsilon)


@gradient("LayerNormalization")
def layer_normalization(
    g: Gradients, node: ir.Node, dy: str, dmean: str = "", dstd: str = ""
) -> Sequence[str | None]:
    """All three outputs are made: onnxruntime-training asks for them even without a bias."""
    x, scale = node.inputs[:2]
    axis = node.attr("axis", -1)
    mean = g.extra_output(node, 1, "saved_mean", dtypes.FLOAT)
    inv_std = g.extra_output(node, 2, "saved_inv_std_var", dtypes.FLOAT)
    if dmean or dstd:
        return _with_statistics(g, node, dy, (mean, dmean), (inv_std, dstd))
    if _fits(g, x, scale, axis):
        inputs = (dy, x, scale, mean, inv_std)
        return g.training_op("LayerNormalizationGrad", *inputs, makes=(True,) * 3, axis=axis)
    inv_std = g.cast_like(inv_std, x)
    xhat = g.mul(g.sub(x, g.cast_like(mean, x)), inv_std)
    return _layer(g, node, dy, xhat, inv_std)


def _layer(
    g: Gradients, node: ir.Node, dy: str, xhat: str, inv_std: str
) -> tuple[str, str | None, str | None]:
    x, scale = node.inputs[:2]
    dx = _through(g, g.mul(dy, scale), xhat, inv_std, _axes_from(g, x, node.attr("axis", -1)))
    db = unbroadcast(g, dy, x, node.inputs[2]) if g.wants(2) else None
    return dx, unbroadcast(g, g.mul(dy, xhat), x, scale) if g.wants(1) else None, db


def _with_statistics(
    g: Gradients, node: ir.Node, dy: str, mean: tuple[str, str], inv_std: tuple[str, str]
) -> Sequence[str | None]:
    """With gradients of the mean, d/n, and of 1/std, -d x_hat / (n std^2), too."""
    x = node.inputs[0]
    centre, slope = (g.cast_like(name, x) for name, _ in (mean, inv_std))
    xhat = g.mul(g.sub(x, centre), slope)
    parts = [_of_inv_std(g, inv_std[1], x, xhat, slope)] if inv_std[1] else []
    if mean[1]:
        parts.append(g.op("Expand", g.cast_like(mean[1], x), g.shape(x)))
    total = g.add(*parts) if len(parts) == 2 else parts[0]
    rest = g.div(total, _count(g, x, node.attr("axis", -1)))
    if not dy:
        return rest, None, None
    dx, dscale, dbias = _layer(g, node, dy, xhat, slope)
    return g.add(dx, rest), dscale, dbias


def _of_inv_std(g: Gradients, dstd: str, x: str, xhat: str, slope: str) -> str:
    return g.neg(g.mul(g.mul(g.cast_like(dstd, x), g.mul(slope, slope)), xhat))


def _count(g: Gradients, x: str, axis: int) -> str:
    """How many numbers are normalised together."""
    sizes = g.shape_slice(x, axis % g.rank(x), g.rank(x))
    return g.cast_like(g.op("ReduceProd", sizes, keepdims=0), x)


@gradient("SimplifiedLayerNormalization")
def simplified_layer_normalization(
    g: Gradients, node: ir.Node, dy: str, drms: str = ""
) -> Sequence[str | None]:
    x, scale = node.inputs[:2]
    axis = node.attr("axis", -1)
    inv_rms = g.extra_output(node, 1, "saved_inv_std_var", dtypes.FLOAT)
    dx, dscale, op = "", None, "SimplifiedLayerNormalizationGrad"
    if dy:
        dx, dscale = g.training_op(op, dy, x, scale, inv_rms, makes=(True,) * 2, axis=axis)
    if drms:
        slope = g.cast_like(inv_rms, x)
        rest = _of_inv_std(g, drms, x, g.mul(x, slope), slope)
        rest = g.div(rest, _count(g, x, axis))
        dx = g.add(dx, rest) if dx else rest
    return dx, dscale


def _fits(g: Gradients, x: str, scale: str, axis: int) -> bool:
    """Whether scale has the sizes of what is normalised, not ones that are repeated."""
    full, part = g.dims(x)[axis % g.rank(x) :], g.dims(scale)
    return len(full) == len(part) and not any(
        own == 1 and size != 1 for size, own in zip(full, part, strict=True)
    )


def _axes_from(g: Gradients, x: str, axis: int) -> tuple[int, ...]:
    return tuple(range(axis % g.rank(x), g.rank(x)))


def _through(
    g: Gradients, gain: str, xhat: str, inv_std: str, axes: Sequence[int], centred: bool = True
) -> str:
    """dX from the gradient of x_hat."""
    rest = g.sub(gain, g.mul(xhat, g.mean(g.mul(gain, xhat), axes)))
    if centred:
        rest = g.sub(rest, g.mean(gain, axes))
    return g.mul(rest, inv_std)


def _standardized(g: Gradients, x: str, axes: Sequence[int], epsilon: float) -> tuple[str, str]:
    """x_hat and 1/std over some axes."""
    centred = g.sub(x, g.mean(x, axes))
    variance = g.mean(g.mul(centred, centred), axes)
    inv_std = g.op("Reciprocal", g.op("Sqrt", g.add(variance, epsilon)))
    return g.mul(centred, inv_std), inv_std


@gradient("InstanceNormalization")
def instance_normalization(g: Gradients, node: ir.Node, dy: str) -> Sequence[str | None]:
    x, scale = node.inputs[:2]
    spatial = tuple(range(2, g.rank(x)))
    xhat, inv_std = _standardized(g, x, spatial, node.attr("epsilon", _EPSILON))
    column = g.reshape(scale, -1, *(1,) * len(spatial))
    dx = _through(g, g.mul(dy, column), xhat, inv_std, spatial) if g.wants(0) else None
    return dx, *_affine(g, dy, xhat, (0, *spatial))


def _affine(g: Gradients, dy: str, xhat: str, axes: Sequence[int]) -> list[str | None]:
    """Gradients of scale and bias."""
    dscale = g.sum(g.mul(dy, xhat), axes, keepdims=False) if g.wants(1) else None
    return [dscale, g.sum(dy, axes, keepdims=False) if g.wants(2) else None]


@gradient("GroupNormalization")
def group_normalization(g: Gradients, node: ir.Node, dy: str) -> Sequence[str | None]:
    """As InstanceNormalization of groups of channels laid out as one axis."""
    x, scale = node.inputs[:2]
    spatial = tuple(range(2, g.rank(x)))
    shape = (g.shape_slice(x, 0, 1), node.attr("num_groups"), -1)
    xhat, inv_std = _standardized(g, g.reshape(x, *shape), (2,), node.attr("epsilon", _EPSILON))
    dx = None
    if g.wants(0):
        gain = g.mul(dy, g.reshape(scale, -1, *(1,) * len(spatial)))
        grouped = _through(g, g.reshape(gain, *shape), xhat, inv_std, (2,))
        dx = g.reshape_like(grouped, x)
    return dx, *_affine(g, dy, g.reshape_like(xhat, x), (0, *spatial))


@gradient("MeanVarianceNormalization")
def mean_variance_normalization(g: Gradients, node: ir.Node, dy: str) -> str:
    """y = (x - mean) / (std + 1e-9); the small number only spares a constant x the 0/0."""
    x, y = node.inputs[0], node.outputs[0]
    axes = tuple(node.attr("axes") or (0, 2, 3))
    centred = g.sub(x, g.mean(x, axes))
    std = g.add(g.op("Sqrt", g.mean(g.mul(centred, centred), axes)), 1e-9)
    return _through(g, dy, y, g.op("Reciprocal", std), axes)


@gradient("LpNormalization")
def lp_normalization(g: Gradients, node: ir.Node, dy: str) -> str:
    """y = x / n: dX = (dY - s sum(dY y)) / n, s being the slope of n: y (p = 2) or sign(x)."""
    x, y, axes = node.inputs[0], node.outputs[0], (node.attr("axis", -1),)
    plain = node.attr("p", 2) == 1
    norm = g.op("ReduceL1" if plain else "ReduceL2", x, g.ints(*axes), keepdims=1)
    norm = g.where(g.equal(norm, 0.0), 1.0, norm)
    slope = g.op("Sign", x) if plain else y
    return g.div(g.sub(dy, g.mul(slope, g.sum(g.mul(dy, y), axes))), norm)


@gradient("LRN")
def lrn(g: Gradients, node: ir.Node, dy: str) -> str:
    """y = x s^-beta with s = bias + alpha/size (sum of x^2 over the channels around):
    dX = dY s^-beta - 2 alpha beta/size x (sum of dY y / s over the channels that see this one).
    """
    x, y, size = node.inputs[0], node.outputs[0], node.attr("size")
    alpha, beta = node.attr("alpha", 1e-4), node.attr("beta", 0.75)
    behind = size // 2
    around = _channel_means(g, g.mul(x, x), size, (size - 1 - behind, behind))
    s = g.add(g.mul(around, alpha), node.attr("bias", 1.0))
    direct = g.mul(dy, g.op("Pow", s, g.scalar(-beta, x)))
    seen = _channel_means(g, g.div(g.mul(dy, y), s), size, (behind, size - 1 - behind))
    return g.sub(direct, g.mul(g.mul(x, seen), 2.0 * alpha * beta))


def _channel_means(g: Gradients, x: str, size: int, pads: tuple[int, int]) -> str:
    """Sums over ``size`` neighbouring channels, zeros beyond the ends, divided by ``size``."""
    planes = g.reshape(x, g.shape_slice(x, 0, 1), 1, g.shape_slice(x, 1, 2), -1)
    means = g.op(
        "AveragePool",
        planes,
        kernel_shape=(size, 1),
        pads=(pads[0], 0, pads[1], 0),
        count_include_pad=1,
    )
    return g.reshape_like(means, x)
