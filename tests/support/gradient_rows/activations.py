"""Gradient rows of activations."""

from __future__ import annotations

from support.gradients import Row, away, normals, single

X, CUBE = normals(2, (3, 4), (2, 3, 2))

ROWS: list[Row] = [
    single("Relu", {"x": away(X, 0)}),
    single("Sigmoid", {"x": X}),
    single("Tanh", {"x": X}),
]
