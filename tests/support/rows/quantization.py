"""Rows of products with 4-bit weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from support.lowering import WRONG_IN_REFERENCE, Array, Row, node, normals

_FP4 = [0, 0.00520833333, 0.66666667, 1, 0.33333333, 0.5, 0.16666667, 0.25]
_NF4 = [
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
    0.7229568362236023, 1.0,
]  # fmt: skip
TABLES = {0: np.array([*_FP4, *(-v for v in _FP4)]), 1: np.array(_NF4)}


def unpacked(packed: Array, absmax: Array, kind: int, block: int) -> Array:
    """The flat weight: the high half of a byte comes first."""
    codes = np.stack([packed >> 4, packed & 15], -1).reshape(-1)
    scales = np.repeat(absmax.astype(np.float64), block)[: codes.size]
    return np.asarray(TABLES[kind][codes] * scales)


def bnb_row(
    name: str, kind: int = 1, turned: int = 1, n: int = 6, k: int = 32, block: int = 16,
    lead: tuple[int, ...] = (5,),
) -> Row:  # fmt: skip
    rng = np.random.default_rng(151)
    packed = rng.integers(0, 256, n * k // 2).astype(np.uint8)
    absmax = (rng.random(-(-n * k // block)) + 0.5).astype(np.float32)
    w = unpacked(packed, absmax, kind, block).reshape(n, k)
    (a,) = normals(151, (*lead, k if turned else n))
    y = a.astype(np.float64) @ (w.T if turned else w)
    attrs = {"N": n, "K": k, "block_size": block, "quant_type": kind, "transB": turned}
    nodes = (node("MatMulBnb4", "a packed absmax", "y", **attrs),)
    constants = {"packed": packed, "absmax": absmax}
    reference = "" if turned else WRONG_IN_REFERENCE  # it ignores transB
    return Row(name, nodes, {"a": a}, {"y": y}, constants, reference=reference)


_ROWS: dict[str, Callable[[str], Row]] = {
    "MatMulBnb4": bnb_row,
    "MatMulBnb4: the gradient": partial(bnb_row, turned=0),
    "MatMulBnb4: FP4": partial(bnb_row, kind=0, lead=(2, 3)),
    "MatMulBnb4: FP4, the gradient": partial(bnb_row, kind=0, turned=0, lead=(2, 3)),
    "MatMulBnb4: short last block": partial(bnb_row, n=5, k=16, block=32),
}

TABLE = {name: partial(build, name) for name, build in _ROWS.items()}
