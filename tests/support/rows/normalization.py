"""Rows of normalisation ops against formulas in float64."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from support.lowering import Array, Row, node, normals

Sizes = tuple[int, ...]
_EPSILON = 1e-5


def _batch_axes(rank: int) -> Sizes:
    return (0, *range(2, rank))


def _spread(value: Array, rank: int) -> Array:
    """(C,) against (N, C, ...)."""
    return value.astype(np.float64).reshape(-1, *(1,) * (rank - 2))


def _statistics(x: Array) -> tuple[Array, Array]:
    wide, axes = x.astype(np.float64), _batch_axes(x.ndim)
    return wide.mean(axes), wide.var(axes)


def batch_norm_row(
    name: str, op: str, shape: Sizes, epsilon: float = _EPSILON, shift: float = 1.0, **attrs: Any
) -> Row:
    """BatchNormInternal, or the stock op in training mode."""
    size = (shape[1],)
    x, scale, bias, mean, spread = normals(11, shape, size, size, size, size)
    x, var = (2 * x + shift).astype(np.float32), (spread * spread + np.float32(0.5))
    batch_mean, batch_var = _statistics(x)
    momentum, training = attrs.get("momentum", 0.9), attrs.get("training_mode", 1)
    used = (batch_mean, batch_var) if training else (mean, var)
    xhat = (x - _spread(used[0], x.ndim)) / np.sqrt(_spread(used[1], x.ndim) + epsilon)
    values = (
        xhat * _spread(scale, x.ndim) + _spread(bias, x.ndim),
        momentum * mean.astype(np.float64) + (1 - momentum) * batch_mean,
        momentum * var.astype(np.float64) + (1 - momentum) * batch_var,
        batch_mean,
        1 / np.sqrt(batch_var + epsilon),
    )
    names = ["y", "running_mean", "running_var", "saved_mean", "saved_inv_std"]
    count = {"BatchNormInternal": 5, "BatchNormalization": 3}[op] if training else 1
    domain = "" if op == "BatchNormalization" else "com.microsoft"
    return Row(
        name,
        (
            node(
                op,
                "x scale bias mean var",
                " ".join(names[:count]),
                domain,
                epsilon=epsilon,
                **attrs,
            ),
        ),
        {"x": x, "scale": scale, "bias": bias, "mean": mean, "var": var},
        dict(list(zip(names, values, strict=True))[:count]),
        sized=("scale", "bias", "mean", "var"),
    )


def batch_norm_grad_row(
    name: str, shape: Sizes, outputs: str = "dx dscale db", sized: bool = True
) -> Row:
    """BatchNormalizationGrad with the statistics of its x."""
    size = (shape[1],)
    x, dy, scale = normals(12, shape, shape, size)
    x = (2 * x + 1).astype(np.float32)
    mean, var = (value.astype(np.float32) for value in _statistics(x))
    inv_std = (1 / np.sqrt(var + np.float32(_EPSILON))).astype(np.float32)
    axes, rank, wide = _batch_axes(x.ndim), x.ndim, dy.astype(np.float64)
    xhat = (x - _spread(mean, rank)) * _spread(inv_std, rank)
    rest = wide - wide.mean(axes, keepdims=True) - xhat * (wide * xhat).mean(axes, keepdims=True)
    values = {
        "dx": _spread(scale, rank) * _spread(inv_std, rank) * rest,
        "dscale": (wide * xhat).sum(axes),
        "db": wide.sum(axes),
    }
    return Row(
        name,
        (node("BatchNormalizationGrad", "dy x scale mean inv_std", outputs, epsilon=_EPSILON),),
        {"dy": dy, "x": x, "scale": scale, "mean": mean, "inv_std": inv_std},
        {key: values[key] for key in outputs.split() if key in values},
        sized=("scale", "mean", "inv_std") if sized else (),
        # x - mean is exact to one rounding of x, dX is what is left of cancelling terms
        tolerance=2e-5,
    )


def layer_norm_grad_row(
    name: str, shape: Sizes, axis: int, outputs: str = "dx dscale db", simplified: bool = False
) -> Row:
    """LayerNormalizationGrad or SimplifiedLayerNormalizationGrad."""
    over = tuple(range(axis % len(shape), len(shape)))
    x, dy, scale = normals(13, shape, shape, shape[axis % len(shape) :])
    centre = np.zeros_like(x) if simplified else x
    mean = centre.mean(over, keepdims=True, dtype=np.float64).astype(np.float32)
    square = ((x - mean) ** 2).mean(over, keepdims=True, dtype=np.float64)
    inv_std = (1 / np.sqrt(square + _EPSILON)).astype(np.float32)
    wide, batch = dy.astype(np.float64), tuple(range(axis % len(shape)))
    xhat = (x.astype(np.float64) - mean) * inv_std
    g = wide * scale
    rest = g - xhat * (g * xhat).mean(over, keepdims=True)
    if not simplified:
        rest = rest - g.mean(over, keepdims=True)
    values = {"dx": inv_std * rest, "dscale": (wide * xhat).sum(batch), "db": wide.sum(batch)}
    names = "dy x scale inv_std" if simplified else "dy x scale mean inv_std"
    feeds = {"dy": dy, "x": x, "scale": scale, "mean": mean, "inv_std": inv_std}
    op = "SimplifiedLayerNormalizationGrad" if simplified else "LayerNormalizationGrad"
    return Row(
        name,
        (node(op, names, outputs, axis=axis, epsilon=_EPSILON, stash_type=1),),
        {key: feeds[key] for key in names.split()},
        {key: values[key] for key in outputs.split() if key in values},
        sized=("scale",),
        reference=""
        if len(outputs.split()) == (2 if simplified else 3) and "_ " not in outputs
        else "it has no kernel for fewer outputs",
    )


def invertible_row(name: str, shape: Sizes, axis: int = -1) -> Row:
    """InvertibleLayerNormalizationGrad: what LayerNormalizationGrad gives, told from Y."""
    row = layer_norm_grad_row(name, shape, axis)
    x, dy, scale, mean, inv_std = (row.feeds[k] for k in ("x", "dy", "scale", "mean", "inv_std"))
    over = tuple(range(axis % len(shape), len(shape)))
    scale = (np.abs(scale) + 0.5).astype(np.float32)
    (bias,) = normals(15, scale.shape)
    y = ((x.astype(np.float64) - mean) * inv_std * scale + bias).astype(np.float32)
    xhat = (y.astype(np.float64) - bias) / scale
    wide, batch = dy.astype(np.float64), tuple(range(axis % len(shape)))
    g = wide * scale
    rest = g - g.mean(over, keepdims=True) - xhat * (g * xhat).mean(over, keepdims=True)
    feeds = {"dy": dy, "y": y, "scale": scale, "bias": bias, "inv_std": inv_std}
    expected = {"dx": inv_std * rest, "dscale": (wide * xhat).sum(batch), "db": wide.sum(batch)}
    nodes = (node("InvertibleLayerNormalizationGrad", " ".join(feeds), "dx dscale db", axis=axis),)
    return Row(name, nodes, feeds, expected, sized=("scale", "bias"), tolerance=2e-5)


def rms_norm_row(name: str, shape: Sizes, **attrs: Any) -> Row:
    """SimplifiedLayerNormalization."""
    axis = attrs.get("axis", -1) % len(shape)
    x, scale = normals(14, shape, shape[axis:])
    wide = x.astype(np.float64)
    square = (wide * wide).mean(tuple(range(axis, len(shape))), keepdims=True)
    inv_rms = 1 / np.sqrt(square + attrs.get("epsilon", _EPSILON))
    return Row(
        name,
        (node("SimplifiedLayerNormalization", "x scale", "y inv_rms", "", **attrs),),
        {"x": x, "scale": scale},
        {"y": wide * inv_rms * scale, "inv_rms": inv_rms},
        sized=("scale",),
    )


_IMAGE, _STOCK = (3, 4, 5, 6), "BatchNormalization"

_ROWS: dict[str, Callable[[str], Row]] = {
    "BatchNormInternal": partial(batch_norm_row, op="BatchNormInternal", shape=_IMAGE),
    "BatchNormInternal: rank 2": partial(batch_norm_row, op="BatchNormInternal", shape=(9, 4)),
    "BatchNormInternal: rank 3": partial(batch_norm_row, op="BatchNormInternal", shape=(3, 4, 5)),
    "BatchNormInternal: rank 5": partial(
        batch_norm_row, op="BatchNormInternal", shape=(2, 3, 2, 4, 3), momentum=0.75
    ),
    "BatchNormInternal: attributes": partial(
        batch_norm_row, op="BatchNormInternal", shape=_IMAGE, momentum=0.5, epsilon=0.01
    ),
    "BatchNormInternal: mean far from 0": partial(
        batch_norm_row, op="BatchNormInternal", shape=_IMAGE, shift=20.0
    ),
    "BatchNormInternal: inference": partial(
        batch_norm_row, op="BatchNormInternal", shape=_IMAGE, training_mode=0
    ),
    _STOCK: partial(batch_norm_row, op=_STOCK, shape=_IMAGE, training_mode=1),
    f"{_STOCK}: momentum": partial(
        batch_norm_row, op=_STOCK, shape=(6, 4), training_mode=1, momentum=0.25
    ),
    f"{_STOCK}: inference": partial(batch_norm_row, op=_STOCK, shape=_IMAGE, training_mode=0),
    "BatchNormalizationGrad": partial(batch_norm_grad_row, shape=_IMAGE),
    "BatchNormalizationGrad: rank 2": partial(batch_norm_grad_row, shape=(9, 4)),
    "BatchNormalizationGrad: rank 3": partial(batch_norm_grad_row, shape=(3, 4, 5)),
    "BatchNormalizationGrad: rank 5": partial(batch_norm_grad_row, shape=(2, 3, 2, 4, 3)),
    "BatchNormalizationGrad: channels not known": partial(
        batch_norm_grad_row, shape=_IMAGE, sized=False
    ),
    "BatchNormalizationGrad: affine part only": partial(
        batch_norm_grad_row, shape=_IMAGE, outputs="dx_unread dscale db"
    ),
    "LayerNormalizationGrad": partial(layer_norm_grad_row, shape=(3, 4, 6), axis=-1),
    "LayerNormalizationGrad: axis -2": partial(layer_norm_grad_row, shape=(3, 4, 6), axis=-2),
    "LayerNormalizationGrad: axis 1": partial(layer_norm_grad_row, shape=(3, 2, 4, 6), axis=1),
    "LayerNormalizationGrad: rank 2": partial(layer_norm_grad_row, shape=(7, 6), axis=1),
    "LayerNormalizationGrad: only dX": partial(
        layer_norm_grad_row, shape=(7, 6), axis=-1, outputs="dx"
    ),
    "LayerNormalizationGrad: affine part only": partial(
        layer_norm_grad_row, shape=(3, 4, 6), axis=-1, outputs="_ dscale db"
    ),
    "InvertibleLayerNormalizationGrad": partial(invertible_row, shape=(3, 4, 6)),
    "InvertibleLayerNormalizationGrad: axis 1": partial(invertible_row, shape=(3, 4, 6), axis=1),
    "SimplifiedLayerNormalization": partial(rms_norm_row, shape=(3, 4, 6)),
    "SimplifiedLayerNormalization: attributes": partial(
        rms_norm_row, shape=(3, 4, 6), axis=-2, epsilon=0.1
    ),
    "SimplifiedLayerNormalizationGrad": partial(
        layer_norm_grad_row, shape=(3, 4, 6), axis=-1, outputs="dx dscale", simplified=True
    ),
    "SimplifiedLayerNormalizationGrad: axis 1": partial(
        layer_norm_grad_row, shape=(3, 4, 6), axis=1, outputs="dx dscale", simplified=True
    ),
    "SimplifiedLayerNormalizationGrad: only dX": partial(
        layer_norm_grad_row, shape=(7, 6), axis=-1, outputs="dx", simplified=True
    ),
}

TABLE = {name: partial(build, name) for name, build in _ROWS.items()}
