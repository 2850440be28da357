"""Gradient rows of arithmetic element by element."""

from __future__ import annotations

import numpy as np
from support.gradients import Row, chain, node, normals, single

A, B, ROW, COLUMN, SCALAR = normals(1, (2, 3), (2, 3), (3,), (2, 1), ())

ROWS: list[Row] = [
    single("Identity", {"x": A}),
    single("Neg", {"x": A}),
    *(
        single(f"{op}{form}", {"a": a, "b": b})
        for op in ("Add", "Sub", "Mul", "Div")
        for form, a, b in (
            ("", A, np.abs(B) + np.float32(0.5)),
            (":row", A, ROW + np.float32(3)),
            (":column", COLUMN, A + np.float32(4)),
            (":outer", ROW, COLUMN + np.float32(3)),
            (":scalar", SCALAR, A + np.float32(4)),
            (":scalars", SCALAR, np.float32(2.5) * np.ones((), np.float32)),
        )
    ),
    chain("Mul:square", [node("Mul", "x x", "y", "")], {"x": A}),
    single("Sum", {"a": A, "b": ROW, "c": COLUMN}),
    single("Sum:one", {"a": A}),
]
