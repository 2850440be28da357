"""Rows of fused dropouts. Random masks are out of reach of a table: ratio 0 and inference."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from support.lowering import NO_KERNEL, Array, Row, node, normals

_SHAPE = (3, 5, 7)


def dropout_row(
    name: str, op: str, ratio: float | None = 0.0, training: bool | None = True,
    residual: bool = False,
) -> Row:  # fmt: skip
    """BitmaskDropout, BiasDropout and BitmaskBiasDropout where nothing is dropped."""
    x, bias, rest = normals(91, _SHAPE, _SHAPE[-1:], _SHAPE)
    feeds: dict[str, Array] = {"x": x}
    total = x.astype(np.float64)
    inputs = ["x"]
    if "Bias" in op:
        feeds["bias"] = bias
        inputs += ["bias", "rest" if residual else "_"]
        total = total + bias
    if residual:
        feeds["rest"] = rest
        total = total + rest
    constants: dict[str, Array] = {}
    if ratio is not None:
        constants["ratio"] = np.array(ratio, np.float32)
    if training is not None:
        constants["training"] = np.array(training)
    inputs += ["ratio" if ratio is not None else "_", "training"]
    used = inputs if training is not None else inputs[:-1]
    stock = op == "Dropout"
    nodes = (node(op, " ".join(used), "y mask", "" if stock else "com.microsoft", seed=7),)
    expected = {"y": total}
    reference = "" if stock else NO_KERNEL
    return Row(name, nodes, feeds, expected, constants, sized=("bias",), reference=reference)


def packed(mask: Array) -> Array:
    """Element i is bit i % 32 of number i // 32."""
    bits = np.zeros(-(-mask.size // 32) * 32, np.uint8)
    bits[: mask.size] = mask.ravel()
    return np.packbits(bits, bitorder="little").view("<u4").astype(np.uint32)


def grad_row(name: str, ratio: float | None = 0.25, training: bool | None = None) -> Row:
    """BitmaskDropoutGrad of a packed mask from outside."""
    (dy,) = normals(92, _SHAPE)
    mask = np.random.default_rng(92).random(_SHAPE) > 0.4
    constants: dict[str, Array] = {}
    if ratio is not None:
        constants["ratio"] = np.array(ratio, np.float32)
    if training is not None:
        constants["training"] = np.array(training)
    names = ("dy", "mask", "ratio" if ratio is not None else "_", "training")
    used = names[: 4 if training is not None else 3 if ratio is not None else 2]
    dx = np.where(mask, dy.astype(np.float64), 0) / (1 - (0.5 if ratio is None else ratio))
    nodes = (node("BitmaskDropoutGrad", " ".join(used), "dx"),)
    feeds = {"dy": dy, "mask": packed(mask)}
    return Row(name, nodes, feeds, {"dx": dx}, constants, reference=NO_KERNEL)


def _softmax(x: Array, axis: int) -> Array:
    flat = x.reshape(int(np.prod(x.shape[:axis])), -1)
    e = np.exp(flat - flat.max(1, keepdims=True))
    return (e / e.sum(1, keepdims=True)).reshape(x.shape)


def bias_softmax_row(name: str, op: str, axis: int | None = None, inner: bool = False) -> Row:
    shape = (2, 3, 4, 5)
    x, bias = normals(93, shape, (2, 1, 1, 5) if inner else (1, 1, 4, 5))
    y = _softmax(x.astype(np.float64) + bias, (1 if axis is None else axis) % 4)
    inputs, outputs, constants = "x bias", "y", {}
    expected = {"y": y}
    if op == "BiasSoftmaxDropout":
        inputs, outputs = "x bias ratio", "y mask softmax"
        constants = {"ratio": np.array(0, np.float32)}
        expected["softmax"] = y
    nodes = (node(op, inputs, outputs, axis=axis, is_inner_broadcast=int(inner)),)
    feeds = {"x": x, "bias": bias}
    return Row(name, nodes, feeds, expected, constants, sized=("bias",), reference=NO_KERNEL)


def softmax_dropout_grad_row(name: str, axis: int | None = None) -> Row:
    dy, x = normals(94, _SHAPE, _SHAPE)
    mask = np.random.default_rng(94).random(_SHAPE) > 0.4
    first = (1 if axis is None else axis) % 3
    y = _softmax(x.astype(np.float64), first).astype(np.float32)
    wide, through = y.astype(np.float64), np.where(mask, dy.astype(np.float64), 0) / 0.75
    total = (through * wide).sum(tuple(range(first, 3)), keepdims=True)
    nodes = (node("SoftmaxDropoutGrad", "dy mask y ratio", "dx", axis=axis),)
    constants = {"ratio": np.array(0.25, np.float32)}
    feeds = {"dy": dy, "mask": mask, "y": y}
    expected = {"dx": wide * (through - total)}
    return Row(name, nodes, feeds, expected, constants, reference=NO_KERNEL)


def behind_row(name: str, forward: str) -> Row:
    """A gradient behind the op that made its mask, where nothing is dropped."""
    x, bias, dy = normals(95, _SHAPE, _SHAPE[-1:], _SHAPE)
    constants = {"ratio": np.array(0, np.float32), "training": np.array(True)}
    feeds: dict[str, Array] = {"x": x, "dy": dy}
    gradient = node(name.split(":")[0], "dy mask ratio training", "dx")
    expected: dict[str, Array] = {"y": x.astype(np.float64), "dx": dy.astype(np.float64)}
    nodes = (node(forward, "x ratio training", "y mask"), gradient)
    if forward == "BiasSoftmaxDropout":
        feeds["bias"] = bias
        y = _softmax(x.astype(np.float64) + bias, 2)
        expected = {"y": y, "softmax": y, "dx": y * (dy - (y * dy).sum(2, keepdims=True))}
        first = node(forward, "x bias ratio", "y mask softmax", axis=2, is_inner_broadcast=0)
        nodes = (first, node("SoftmaxDropoutGrad", "dy mask softmax ratio", "dx", axis=2))
        del constants["training"]
    return Row(name, nodes, feeds, expected, constants, sized=("bias",), reference=NO_KERNEL)


_ROWS: dict[str, Callable[[str], Row]] = {
    "BitmaskDropoutGrad: behind its op": partial(behind_row, forward="BitmaskDropout"),
    "SoftmaxDropoutGrad: behind its op": partial(behind_row, forward="BiasSoftmaxDropout"),
    "BitmaskDropoutGrad": grad_row,
    "BitmaskDropoutGrad: ratio absent": partial(grad_row, ratio=None),
    "BitmaskDropoutGrad: training": partial(grad_row, training=True),
    "BiasSoftmax": partial(bias_softmax_row, op="BiasSoftmax"),
    "BiasSoftmax: last axis, inner": partial(
        bias_softmax_row, op="BiasSoftmax", axis=3, inner=True
    ),
    "BiasSoftmax: axis 2": partial(bias_softmax_row, op="BiasSoftmax", axis=2),
    "BiasSoftmax: axis 0": partial(bias_softmax_row, op="BiasSoftmax", axis=0),
    "BiasSoftmaxDropout": partial(bias_softmax_row, op="BiasSoftmaxDropout", axis=-1),
    "SoftmaxDropoutGrad": softmax_dropout_grad_row,
    "SoftmaxDropoutGrad: last axis": partial(softmax_dropout_grad_row, axis=-1),
}
for _op in ("Dropout", "BitmaskDropout", "BiasDropout", "BitmaskBiasDropout"):
    _ROWS[_op] = partial(dropout_row, op=_op)
    _ROWS[f"{_op}: inference"] = partial(dropout_row, op=_op, ratio=0.5, training=False)
    _ROWS[f"{_op}: ratio absent"] = partial(dropout_row, op=_op, ratio=None, training=None)
for _op in ("BiasDropout", "BitmaskBiasDropout"):
    _ROWS[f"{_op}: residual"] = partial(dropout_row, op=_op, residual=True)

TABLE = {name: partial(build, name) for name, build in _ROWS.items()}
