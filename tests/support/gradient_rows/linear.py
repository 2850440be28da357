"""Gradient rows of matrix products."""

from __future__ import annotations

from support.gradients import Row, normals, single

A, B = normals(3, (3, 4), (4, 2))

ROWS: list[Row] = [single("MatMul", {"a": A, "b": B}), single("Gemm", {"a": A, "b": B})]
