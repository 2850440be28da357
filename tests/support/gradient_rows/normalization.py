"""Gradient rows of normalisations."""

from __future__ import annotations

from typing import Any

import numpy as np
from support.gradient_forwards import lrn, of_formula
from support.gradients import Row, chain, node, normals, single
from support.lowering import Array

X2, X3, X4 = normals(11, (4, 6), (2, 3, 5), (2, 4, 3, 2))
MEAN, VAR = np.zeros(4, np.float32), np.ones(4, np.float32)


def around(seed: int, *shape: int) -> Array:
    """A scale: around 1."""
    (noise,) = normals(seed, shape)
    return (1 + 0.3 * noise).astype(np.float32)


def affine(x: Array, *shape: int, bias: bool = True) -> dict[str, Array]:
    """x, scale and bias."""
    made = {"x": x, "scale": around(5, *shape)}
    return {**made, "bias": around(6, *shape)} if bias else made


def batch_norm(name: str, x: Array, **attrs: Any) -> Row:
    """Batch statistics make the gradient, whatever mode the forward node is in."""
    count = x.shape[1]
    rest = {"mean": MEAN[:count], "var": VAR[:count]}
    row = single(name, affine(x, count), constants=rest, attrs=attrs)
    training = node(
        "BatchNormalization", "x scale bias mean var", "y m v", "", training_mode=1, **attrs
    )
    return Row(**{**vars(row), "forward": (training,)})


def layer_norm(name: str, x: Array, axis: int = -1, **options: Any) -> Row:
    """A LayerNormalization with one output."""
    inputs = affine(x, *x.shape[axis % x.ndim :], bias=options.pop("bias", True))
    return single(name, inputs, attrs={"axis": axis}, sized=("scale", "bias"), **options)


def simplified(name: str, x: Array, axis: int = -1, makes: str = "y") -> Row:
    inputs = affine(x, *x.shape[axis % x.ndim :], bias=False)
    return single(name, inputs, makes=makes, attrs={"axis": axis}, outputs=("y",))


def response(name: str, x: Array, **attrs: Any) -> Row:
    """A local response normalisation; onnxruntime has odd sizes of rank 4 only."""
    expected = of_formula(lambda inputs: lrn(inputs["x"], **attrs))
    return single(name, {"x": x}, attrs=attrs, expected=expected)


def standardized(inputs: dict[str, Array], groups: int, epsilon: float = 1e-5) -> Array:
    """Groups of channels made even; a number of scale and bias is for one or more channels."""
    x = inputs["x"]
    rows = x.reshape(x.shape[0], groups, -1)
    rows = rows - rows.mean(-1, keepdims=True)
    rows = rows / np.sqrt((rows**2).mean(-1, keepdims=True) + epsilon)
    column = (-1, *[1] * (x.ndim - 2))
    scale, bias = (
        np.repeat(inputs[name], x.shape[1] // len(inputs[name])).reshape(column)
        for name in ("scale", "bias")
    )
    return np.asarray(rows.reshape(x.shape) * scale + bias)


def per_channel(name: str, x: Array, **attrs: Any) -> Row:
    """An InstanceNormalization."""
    count = x.shape[1]
    expected = of_formula(lambda inputs: standardized(inputs, count, **attrs))
    return single(name, affine(x, count), attrs=attrs, expected=expected)


def evened(name: str, x: Array, over: tuple[int, ...], **attrs: Any) -> Row:
    """A MeanVarianceNormalization."""

    def forward(inputs: dict[str, Array]) -> Array:
        x = inputs["x"]
        return np.asarray((x - x.mean(over, keepdims=True)) / x.std(over, keepdims=True))

    return single(name, {"x": x}, attrs=attrs, expected=of_formula(forward))


def grouped(name: str, x: Array, groups: int, **options: Any) -> Row:
    """``opset`` 18: scale and bias have a number a group."""
    count = groups if options.get("opset") == 18 else x.shape[1]
    expected = of_formula(lambda inputs: standardized(inputs, groups))
    attrs = {"num_groups": groups}
    return single(name, affine(x, count), attrs=attrs, expected=expected, **options)


ROWS: list[Row] = [
    batch_norm("BatchNormalization", X4),
    batch_norm("BatchNormalization:rank 2", X2[:, :4], epsilon=1e-3),
    batch_norm("BatchNormalization:rank 3", X3),
    layer_norm("LayerNormalization", X2),
    layer_norm("LayerNormalization:no bias", X2, bias=False),
    layer_norm("LayerNormalization:axis 1", X3, axis=1),
    layer_norm("LayerNormalization:axis -2", X4, axis=-2, bias=False),
    layer_norm("LayerNormalization:three outputs", X2, makes="y mean inv", outputs=("y",)),
    layer_norm("LayerNormalization:gradients of all outputs", X3, axis=1, makes="y mean inv"),
    single(
        "LayerNormalization:gradients of the statistics",
        {"x": X2},
        makes="y mean inv",
        constants={"scale": around(5, 6)},
        outputs=("mean", "inv"),
    ),
    single("LayerNormalization:one scale", affine(X2, 1), sized=("scale", "bias")),
    simplified("SimplifiedLayerNormalization", X2),
    simplified("SimplifiedLayerNormalization:axis 1", X3, axis=1),
    simplified("SimplifiedLayerNormalization:two outputs", X2, makes="y inv"),
    chain(
        "SimplifiedLayerNormalization:gradients of both outputs",
        [
            node("SimplifiedLayerNormalization", "x scale", "y inv", "", axis=1),
            node("CastLike", "inv x", "v", ""),
        ],
        affine(X3, 3, 5, bias=False),
        outputs=("y", "v"),
    ),
    single("RMSNormalization:opset 23", affine(X2, 6, bias=False), opset=23),
    single("RMSNormalization:axis", affine(X3, 3, 5, bias=False), attrs={"axis": 1}, opset=23),
    per_channel("InstanceNormalization", X4),
    per_channel("InstanceNormalization:1-D", X3, epsilon=0.1),
    grouped("GroupNormalization", X4, 2),
    grouped("GroupNormalization:one", X3, 1),
    grouped("GroupNormalization:opset 18", X4, 2, opset=18),
    evened("MeanVarianceNormalization", X4, (0, 2, 3)),
    evened("MeanVarianceNormalization:axes", X3, (0, 2), axes=[0, 2]),
    single("LpNormalization", {"x": X2}),
    single("LpNormalization:axis 1", {"x": X3}, attrs={"axis": 1}),
    single("LpNormalization:p 1", {"x": X3}, attrs={"axis": -2, "p": 1}),
    single(
        "LpNormalization:zeros",
        {"x": np.zeros((2, 2), np.float32)},
        expected=lambda inputs, r: {"x": r["y"]},
    ),
    response("LRN", X4, size=3, alpha=0.5),
    response("LRN:other numbers", X4, size=3, alpha=0.7, beta=0.6, bias=2.0),
    response("LRN:wider than x", X4, size=9, alpha=0.5),
    chain(
        "BatchNormalization:behind a product",
        [
            node("Mul", "x x", "square", ""),
            node("BatchNormalization", "square scale bias mean var", "y", ""),
        ],
        affine(X4, 4),
        constants={"mean": MEAN, "var": VAR},
        forward=(
            node("Mul", "x x", "square", ""),
            node("BatchNormalization", "square scale bias mean var", "y m v", "", training_mode=1),
        ),
    ),
]
