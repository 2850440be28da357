"""Gradient rows of quantization: the straight-through rule, written out."""

from __future__ import annotations

from typing import Any

import numpy as np
from support.gradients import Array, Row, chain, node, normals, single

(X,) = normals(41, (3, 4, 2))
SCALE, ZERO = np.array(0.01, np.float32), np.array(10, np.int8)


def straight(inputs: dict[str, Array], r: dict[str, Array], **made: Any) -> dict[str, Array]:
    """r where x / scale + zero point rounds into the range."""
    low, high = made["span"]
    steps = np.round(inputs["x"] / made["scale"]) + made["zero"]
    return {"x": np.where((steps >= low) & (steps <= high), r["y"], 0)}


def pair(
    name: str,
    scale: Array = SCALE,
    zero: Array | None = ZERO,
    span: tuple[int, int] = (-128, 127),
    between: tuple[Any, ...] = (),
    **attrs: Any,
) -> Row:
    """QuantizeLinear and DequantizeLinear; ``between`` moves the integers ``q`` to ``moved``."""
    domain = "com.microsoft" if attrs.pop("microsoft", False) else ""
    constants = {"s": scale, **({} if zero is None else {"z": zero})}
    points = "s z" if zero is not None else "s"
    axis = attrs.get("axis", 1)

    def wide(values: Array) -> Array:
        shape = [1] * X.ndim
        shape[axis] = -1
        return np.asarray(values, np.float64).reshape(shape if values.ndim else ())

    made = {"scale": wide(scale), "zero": 0 if zero is None else wide(zero), "span": span}
    end = "moved" if between else "q"
    return chain(
        name,
        [
            node("QuantizeLinear", f"x {points}", "q", domain, **attrs),
            *between,
            node("DequantizeLinear", f"{end} {points}", "y", domain, **attrs),
        ],
        {"x": X},
        constants=constants,
        expected=lambda inputs, r: straight(inputs, r, **made),
    )


def turned(inputs: dict[str, Array], r: dict[str, Array]) -> dict[str, Array]:
    """The straight-through rule with a Transpose, a Reshape and a MaxPool in between."""
    q = np.clip(np.round(inputs["x"] / SCALE) + ZERO, -128, 127).transpose(2, 0, 1)
    dx = np.zeros((2, 3, 4))
    for i, j, k in np.ndindex(2, 3, 2):
        best = 2 * k + int(np.argmax(q[i, j, 2 * k : 2 * k + 2]))
        dx[i, j, best] = r["y"].reshape(2, 3, 2)[i, j, k]
    return straight(inputs, {"y": dx.transpose(1, 2, 0)}, scale=SCALE, zero=ZERO, span=(-128, 127))


CHANNELS = np.array([0.01, 0.02, 0.004, 0.007], np.float32)
MOVES = (
    node("Transpose", "q", "t", "", perm=[2, 0, 1]),
    node("MaxPool", "t", "m", "", kernel_shape=[2], strides=[2]),
    node("Unsqueeze", "m axes", "u", ""),
    node("Squeeze", "u axes", "v", ""),
    node("Identity", "v", "w", ""),
    node("Reshape", "w flat", "moved", ""),
)

ROWS: list[Row] = [
    pair("QuantizeLinear"),
    pair("QuantizeLinear:uint8", zero=np.array(128, np.uint8), span=(0, 255)),
    pair("QuantizeLinear:no zero point", zero=None, span=(0, 255)),
    pair("QuantizeLinear:int16", np.array(1e-4, np.float32), np.array(5, np.int16),
         span=(-32768, 32767)),
    pair("QuantizeLinear:channels", CHANNELS, np.array([0, 3, -5, 9], np.int8)),
    pair("QuantizeLinear:last axis", CHANNELS[:2], np.array([0, 3], np.int8), axis=-1),
    pair("cm.QuantizeLinear", microsoft=True),
    Row(**{
        **vars(pair("QuantizeLinear:moved", between=MOVES)),
        "constants": {"s": SCALE, "z": ZERO, "axes": np.array([0]), "flat": np.array([-1])},
        "expected": turned,
    }),
    single(
        "cm.FakeQuant", {"x": X}, constants={"s": SCALE, "z": np.array(120, np.float32)},
        expected=lambda inputs, r: straight(inputs, r, scale=0.01, zero=120, span=(0, 255)),
    ),
]  # fmt: skip
