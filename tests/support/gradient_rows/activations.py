"""Gradient rows of activations. Points lie off the kinks, save where a row says which slope."""

from __future__ import annotations

from typing import Any

import numpy as np
from support.gradients import Array, Arrays, Row, away, normals, single

X, CUBE, POINT, BIAS, CHANNELS = normals(2, (3, 4), (2, 3, 2), (), (4,), (3, 1))
SMOOTH = away(X, 0)
WIDE = away(4 * X, -3, 3)
KINKS = np.array([0, -1, 2], np.float32)


def slopes(*values: float) -> Any:
    """Gradients from slopes at a few points."""

    def expected(inputs: dict[str, Array], r: dict[str, Array]) -> Arrays:
        return {"x": r["y"] * values}

    return expected


def forms(op: str, x: Array, **attributes: dict[str, Any]) -> list[Row]:
    """The op with its defaults, at one number, and with attributes by the row's name."""
    return [
        single(op, {"x": x}),
        single(f"{op}:scalar", {"x": x[0, 0]}),
        *(single(f"{op}:{form}", {"x": x}, attrs=attrs) for form, attrs in attributes.items()),
    ]


ROWS: list[Row] = [
    *forms("Relu", SMOOTH),
    single("Relu:zero", {"x": KINKS}, expected=slopes(0, 0, 1)),
    *forms("Sigmoid", X),
    *forms("Tanh", X),
    *forms(
        "LeakyRelu", SMOOTH, alpha={"alpha": 0.3}, zero={"alpha": 0.0}, negative={"alpha": -0.5}
    ),
    *forms("Elu", SMOOTH, alpha={"alpha": 0.7}, negative={"alpha": -0.7}),
    single("Elu:zero", {"x": KINKS}, attrs={"alpha": 0.5}, expected=slopes(0.5, 0.5 / np.e, 1)),
    *forms("Selu", SMOOTH, both={"alpha": 1.2, "gamma": 0.8}),
    *forms("Celu", SMOOTH, alpha={"alpha": 2.0}),
    *forms("Softplus", X),
    single("Softplus:far", {"x": np.array([-50, 50, 100], np.float32)}),
    *forms("Softsign", SMOOTH),
    *forms("HardSigmoid", away(2 * X, -2.5, 2.5), both={"alpha": 0.3, "beta": 0.4}),
    *forms("HardSwish", WIDE),
    single("HardSwish:bounds", {"x": np.array([-3, 0, 3], np.float32)}, expected=slopes(0, 0.5, 1)),
    *forms("Mish", X),
    single("Mish:far", {"x": np.array([-30, 30, 90], np.float32)}),
    *forms("ThresholdedRelu", away(X, 0.5, 1), alpha={"alpha": 0.5}),
    *forms("Shrink", away(X, -0.5, 0.5, -0.3, 0.3), both={"lambd": 0.3, "bias": 0.1}),
    *forms("Gelu", X, tanh={"approximate": "tanh"}),
    single("PRelu", {"x": SMOOTH, "slope": BIAS}),
    single("PRelu:full", {"x": SMOOTH, "slope": X[::-1].copy()}),
    single("PRelu:channels", {"x": away(CUBE, 0), "slope": CHANNELS}),
    single("PRelu:one", {"x": SMOOTH, "slope": np.array([0.25], np.float32)}),
    single("PRelu:frozen", {"x": SMOOTH}, constants={"slope": np.array(0.25, np.float32)}),
    *(single(op, {"x": X}) for op in ("Softmax", "LogSoftmax")),
    *(
        single(f"{op}:{form}", {"x": x}, attrs={"axis": axis})
        for op in ("Softmax", "LogSoftmax")
        for form, x, axis in (
            ("first", X, 0),
            ("middle", CUBE, 1),
            ("negative", CUBE, -2),
            ("vector", BIAS, 0),
        )
    ),
    *(
        single(f"{op}:old", {"x": CUBE}, attrs={"axis": 1}, opset=12)
        for op in ("Softmax", "LogSoftmax")
    ),
    single("cm.Gelu", {"x": X}),
    single("cm.QuickGelu", {"x": X}),
    single("cm.QuickGelu:silu", {"x": X}, attrs={"alpha": 1.0}),
    single("cm.FastGelu", {"x": X}),
    single("cm.FastGelu:bias", {"x": X, "bias": BIAS}),
    single("cm.FastGelu:cube", {"x": CUBE, "bias": BIAS[:2]}),
    single("cm.BiasGelu", {"x": X, "bias": BIAS}),
    single("cm.BiasGelu:cube", {"x": CUBE, "bias": BIAS[:2]}),
]

#: row -> points at kinks, the slopes that PyTorch gives there, attributes, constants
AT_KINKS: dict[str, tuple[list[float], list[float], dict[str, Any], dict[str, Any]]] = {
    "Selu:kink": ([0, 2], [1.7580993, 1.0507010], {}, {}),
    "Celu:kink": ([0, 2], [1, 1], {"alpha": 2.0}, {}),
    "LeakyRelu:kink": ([0, 2], [0.25, 1], {"alpha": 0.25}, {}),
    "Softsign:kink": ([0, 1], [1, 0.25], {}, {}),
    "HardSigmoid:kinks": ([-2, 0, 2], [0, 0.25, 0], {"alpha": 0.25}, {}),
    "ThresholdedRelu:kink": ([1, 2], [0, 1], {}, {}),
    "Shrink:kinks": ([0.5, -0.5, 1], [0, 0, 1], {}, {}),
    "PRelu:kink": ([0, -1, 1], [0.25, 0.25, 1], {}, {"slope": np.array(0.25, np.float32)}),
}

ROWS += [
    single(
        name,
        {"x": np.array(x, np.float32)},
        attrs=attrs,
        constants=constants,
        expected=slopes(*values),
    )
    for name, (x, values, attrs, constants) in AT_KINKS.items()
]
