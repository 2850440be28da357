"""Gradient rows of functions of one number."""

from __future__ import annotations

import numpy as np
from support.gradients import Array, Arrays, Row, away, normals, single

X, POINT = normals(11, (3, 4), ())
INSIDE = np.tanh(X)  # (-1, 1)
POSITIVE = np.abs(X) + np.float32(0.2)

DOMAINS: dict[str, Array] = {
    "Abs": away(X, 0),
    "Sqrt": POSITIVE,
    "Reciprocal": away(X, 0, by=0.2),
    "Exp": X,
    "Log": POSITIVE,
    "Erf": X,
    "Sin": X,
    "Cos": X,
    "Tan": INSIDE,
    "Asin": INSIDE,
    "Acos": INSIDE,
    "Atan": X,
    "Sinh": X,
    "Cosh": X,
    "Asinh": X,
    "Acosh": POSITIVE + np.float32(1),
    "Atanh": INSIDE * np.float32(0.9),
}


def abs_at_zero(inputs: dict[str, Array], r: dict[str, Array]) -> Arrays:
    return {"x": r["y"] * np.sign(inputs["x"])}


ROWS: list[Row] = [
    *(single(op, {"x": x}) for op, x in DOMAINS.items()),
    *(single(f"{op}:scalar", {"x": x[0, 0]}) for op, x in DOMAINS.items()),
    single("Abs:zero", {"x": np.array([0, -1, 2], np.float32)}, expected=abs_at_zero),
]
