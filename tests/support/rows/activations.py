"""Rows of activation gradients and contrib activations against formulas in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from support.lowering import WRONG_IN_REFERENCE, Array, Row, node, normals

Formula = Callable[..., Array]
_SHAPE = (3, 5, 7)
_ERF = np.vectorize(math.erf, otypes=[float])


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _gelu(x: Array) -> Array:
    return 0.5 * x * (1 + _ERF(x / math.sqrt(2)))


def _tanh_gelu(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _slope(forward: Formula) -> Formula:
    """dy f'(x) by a central difference in float64 (good to 1e-9)."""
    return lambda dy, x: dy * (forward(x + 1e-5) - forward(x - 1e-5)) / 2e-5


def _softmax(x: Array, axis: int) -> Array:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def gradient_row(
    name: str,
    op: str,
    formula: Formula,
    of: Formula | None = None,
    scale: float = 1.0,
    shape: tuple[int, ...] = _SHAPE,
    **attrs: Any,
) -> Row:
    """dX = formula(dY, v) where v is x itself or, with ``of``, the output of(x)."""
    dy, x = normals(21, shape, shape)
    x = np.asarray(x * np.float32(scale))
    if x.ndim:
        x.reshape(-1)[:3] = (0.0, -0.0, 1.0)
    value = x if of is None else np.asarray(of(x.astype(np.float64)), np.float32)
    expected = formula(dy.astype(np.float64), value.astype(np.float64))
    feeds = {"dy": dy, "v": value}
    return Row(name, (node(op, "dy v", "dx", **attrs),), feeds, {"dx": expected})


def forward_row(name: str, op: str, formula: Formula, bias: bool = False, **attrs: Any) -> Row:
    """Y = formula(X), or of X + bias."""
    x, b = normals(22, _SHAPE, _SHAPE[-1:])
    feeds = {"x": x, "b": b} if bias else {"x": x}
    total = x.astype(np.float64) + (b if bias else 0)
    nodes = (node(op, " ".join(feeds), "y", **attrs),)
    return Row(name, nodes, feeds, {"y": formula(total)}, sized=("b",))


def bias_gradient_row(name: str, op: str, formula: Formula) -> Row:
    """dX = formula(dY, X + B)."""
    dy, x, bias = normals(25, _SHAPE, _SHAPE, _SHAPE[-1:])
    expected = formula(dy.astype(np.float64), x.astype(np.float64) + bias)
    feeds = {"dy": dy, "x": x, "b": bias}
    return Row(name, (node(op, "dy x b", "dx"),), feeds, {"dx": expected}, sized=("b",))


def legacy_softmax_row(
    name: str, op: str, axis: int | None = None, shape: tuple[int, ...] = _SHAPE
) -> Row:
    """SoftmaxGrad and LogSoftmaxGrad: the input seen as (before axis, axis and behind)."""
    first = (1 if axis is None else axis) % len(shape)
    rows = (int(np.prod(shape[:first])), int(np.prod(shape[first:])))
    row = softmax_row(name, op, 1, rows)
    dx = row.expected["dx"].reshape(shape)
    feeds = {key: value.reshape(shape) for key, value in row.feeds.items()}
    return Row(name, (node(op, "dy v", "dx", axis=axis),), feeds, {"dx": dx})


def softmax_row(
    name: str, op: str, axis: int | None = None, shape: tuple[int, ...] = _SHAPE
) -> Row:
    """SoftmaxGrad_13 and LogSoftmaxGrad_13."""
    dy, x = normals(23, shape, shape)
    along = -1 if axis is None else axis
    y = _softmax(x, along)
    value = np.log(y) if op.startswith("Log") else y
    wide, v = dy.astype(np.float64), value.astype(np.float32).astype(np.float64)
    if op.startswith("Log"):
        expected = wide - np.exp(v) * wide.sum(along, keepdims=True)
    else:
        expected = v * (wide - (wide * v).sum(along, keepdims=True))
    feeds = {"dy": dy, "v": value.astype(np.float32)}
    return Row(name, (node(op, "dy v", "dx", axis=axis),), feeds, {"dx": expected})


def dropout_row(
    name: str, ratio: float | None = 0.3, training: bool | None = None, fed: bool = False
) -> Row:
    """DropoutGrad; ratio and training_mode as constants, or ``fed``."""
    (dy,) = normals(24, _SHAPE)
    on = training is not False
    mask = np.ones(_SHAPE, np.bool_)
    if on and ratio != 0:
        mask = np.random.default_rng(24).random(_SHAPE) > 0.4
    optional: dict[str, Array] = {}
    if ratio is not None:
        optional["ratio"] = np.array(ratio, np.float32)
    if training is not None:
        optional["training"] = np.array(training)
    kept = 1 - np.float64(np.float32(0.5 if ratio is None else ratio))
    names = ("dy", "mask", "ratio" if ratio is not None else "_", "training")
    used = names[: 4 if training is not None else 3 if ratio is not None else 2]
    feeds = {"dy": dy, "mask": mask}
    return Row(
        name,
        (node("DropoutGrad", " ".join(used), "dx"),),
        {**feeds, **optional} if fed else feeds,
        {"dx": np.where(mask, dy / (kept if on else 1.0), 0.0).astype(np.float64)},
        constants={} if fed else optional,
        reference="" if on else WRONG_IN_REFERENCE,
    )


def _leaky(alpha: float) -> Formula:
    return lambda dy, y: dy * np.where(y > 0, 1.0, np.float32(alpha))


def _quick(alpha: float) -> Formula:
    return lambda x: x * _sigmoid(np.float32(alpha) * x)


_ROWS: dict[str, Callable[[str], Row]] = {
    "ReluGrad": partial(gradient_row, op="ReluGrad", formula=lambda dy, x: dy * (x > 0)),
    "LeakyReluGrad": partial(gradient_row, op="LeakyReluGrad", formula=_leaky(0.01)),
    "LeakyReluGrad: alpha": partial(
        gradient_row, op="LeakyReluGrad", formula=_leaky(0.2), alpha=0.2
    ),
    "SigmoidGrad": partial(
        gradient_row, op="SigmoidGrad", formula=lambda dy, y: dy * y * (1 - y), of=_sigmoid
    ),
    "SigmoidGrad: saturated": partial(
        gradient_row,
        op="SigmoidGrad",
        formula=lambda dy, y: dy * y * (1 - y),
        of=_sigmoid,
        scale=30.0,
    ),
    "TanhGrad": partial(
        gradient_row, op="TanhGrad", formula=lambda dy, y: dy * (1 - y * y), of=np.tanh
    ),
    "GeluGrad": partial(gradient_row, op="GeluGrad", formula=_slope(_gelu)),
    "GeluGrad: far out": partial(gradient_row, op="GeluGrad", formula=_slope(_gelu), scale=8.0),
    "FastGeluGrad": partial(gradient_row, op="FastGeluGrad", formula=_slope(_tanh_gelu)),
    "FastGeluGrad: far out": partial(
        gradient_row, op="FastGeluGrad", formula=_slope(_tanh_gelu), scale=8.0
    ),
    "QuickGeluGrad": partial(gradient_row, op="QuickGeluGrad", formula=_slope(_quick(1.702))),
    "QuickGeluGrad: alpha 1": partial(
        gradient_row, op="QuickGeluGrad", formula=_slope(_quick(1.0)), alpha=1.0
    ),
    "Gelu": partial(forward_row, op="Gelu", formula=_gelu),
    "FastGelu": partial(forward_row, op="FastGelu", formula=_tanh_gelu),
    "FastGelu: bias": partial(forward_row, op="FastGelu", formula=_tanh_gelu, bias=True),
    "QuickGelu": partial(forward_row, op="QuickGelu", formula=_quick(1.702)),
    "QuickGelu: alpha 1": partial(forward_row, op="QuickGelu", formula=_quick(1.0), alpha=1.0),
    "BiasGelu": partial(forward_row, op="BiasGelu", formula=_gelu, bias=True),
    "BiasGeluGrad_dX": partial(bias_gradient_row, op="BiasGeluGrad_dX", formula=_slope(_gelu)),
    "BiasFastGeluGrad_dX": partial(
        bias_gradient_row, op="BiasFastGeluGrad_dX", formula=_slope(_tanh_gelu)
    ),
    **{
        f"{op}{rest}": partial(legacy_softmax_row, op=op, **options)
        for op in ("SoftmaxGrad", "LogSoftmaxGrad")
        for rest, options in {
            "": {},
            ": axis 0": {"axis": 0},
            ": axis 2": {"axis": 2},
            ": axis -2": {"axis": -2, "shape": (2, 3, 4, 5)},
            ": rank 2": {"shape": (4, 9)},
        }.items()
    },
    "DropoutGrad": dropout_row,
    "DropoutGrad: ratio absent": partial(dropout_row, ratio=None),
    "DropoutGrad: ratio 0": partial(dropout_row, ratio=0.0),
    "DropoutGrad: training": partial(dropout_row, training=True),
    "DropoutGrad: inference": partial(dropout_row, training=False),
    "DropoutGrad: training, fed": partial(dropout_row, training=True, fed=True),
    "DropoutGrad: inference, fed": partial(dropout_row, training=False, fed=True),
    **{
        f"{op}{rest}": partial(softmax_row, op=op, **options)
        for op in ("SoftmaxGrad_13", "LogSoftmaxGrad_13")
        for rest, options in {
            "": {},
            ": axis 1": {"axis": 1},
            ": axis 0": {"axis": 0},
            ": rank 2": {"axis": -1, "shape": (4, 9)},
            ": one class": {"axis": 1, "shape": (4, 1)},
        }.items()
    },
}

for _op in [op for op, build in _ROWS.items() if getattr(build, "func", None) is gradient_row]:
    if ":" not in _op:
        for _shape in ((), (4,), (2, 1, 3, 1, 2)):
            _ROWS[f"{_op}: rank {len(_shape)}"] = partial(_ROWS[_op], shape=_shape)

TABLE = {name: partial(build, name) for name, build in _ROWS.items()}
