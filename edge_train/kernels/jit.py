"""The Numba backend: steps.py compiled just in time, at the first call of each kernel.

Nothing is cached on disk, and Numba is imported only when this backend is asked for.
"""

from __future__ import annotations

from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from edge_train.kernels import steps
from edge_train.kernels.contract import (
    AdamW8Scalars,
    AdamWScalars,
    LionScalars,
    MomentumScalars,
    Steps,
)
from edge_train.kernels.packed import BLOCK, TABLE, Floats, Packed


def _compiler() -> Any:
    try:
        from numba import njit
    except ImportError as error:
        raise ImportError(
            "EDGE_TRAIN_KERNELS=numba needs the package Numba, which cannot be imported "
            f"({error}); install it with pip install 'edge-train[numba]', or unset the variable"
        ) from error
    return njit


def _compiled() -> SimpleNamespace:
    njit = _compiler()
    plain = njit(error_model="numpy", nogil=True)
    summing = njit(error_model="numpy", nogil=True, fastmath={"reassoc"})
    table = {source.__name__: plain(source) for source in steps.ELEMENTWISE}
    table.update({source.__name__: summing(source) for source in steps.REDUCTIONS})
    table["adamw"] = _dispatcher(plain, table["adamw_mode0"], table["adamw_mode1"])
    return SimpleNamespace(**table)


def _dispatcher(compile_it: Any, mode0: Any, mode1: Any) -> Any:
    """One compiled entry for both modes that unpacks the scalars outside the loops."""

    def adamw(p: Floats, g: Floats, m: Floats, v: Floats, mode: int, s: Floats) -> None:
        if mode == 0:
            mode0(p, g, m, v, p.size, s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7], s[8])
        else:
            mode1(p, g, m, v, p.size, s[0], s[1], s[2], s[3], s[4], s[5], s[6])

    return compile_it(adamw)


def _narrow(*numbers: float) -> tuple[np.float32, ...]:
    return tuple(np.float32(number) for number in numbers)


@lru_cache(maxsize=1)
def build() -> Steps:
    """The compiled backend, one per process; ImportError where Numba is missing."""
    kernels = _compiled()

    def adamw(p: Floats, g: Floats, m: Floats, v: Floats, s: AdamWScalars) -> None:
        kernels.adamw(p, g, m, v, s.mode, s.packed)

    def adamw8(p: Floats, g: Floats, q: Packed, at: slice, s: AdamW8Scalars) -> None:
        numbers = (s.beta1, s.rest1, s.beta2, s.rest2, s.eps, s.rate, s.before, s.after)
        arrays = (p, g, q.ratio, q.root, q.ratio_max, q.root_max, q.bounds)
        ratios, roots = np.empty((2, BLOCK), np.float32)
        kernels.adamw8(
            *arrays, ratios, roots, TABLE, at.start, *q.blocks(at), *_narrow(*numbers), s.seed
        )

    def sgd(weights: Floats, gradients: Floats, lr: float) -> None:
        kernels.sgd(weights, gradients, weights.size, np.float32(lr))

    def momentum(p: Floats, g: Floats, m: Floats, s: MomentumScalars) -> None:
        kernels.momentum(p, g, m, p.size, *_narrow(s.mu, s.lr, s.decay, s.nesterov))

    def lion(p: Floats, g: Floats, m: Floats, s: LionScalars) -> None:
        numbers = _narrow(s.beta1, s.rest1, s.beta2, s.rest2, s.lr, s.decay)
        kernels.lion(p, g, m, p.size, *numbers)

    def squares(gradients: Floats) -> float:
        return float(kernels.squares(gradients, gradients.size))

    def scale(gradients: Floats, factor: float) -> None:
        kernels.scale(gradients, gradients.size, np.float32(factor))

    def accumulate(buffer: Floats, value: Floats) -> None:
        kernels.accumulate(buffer, value, buffer.size)

    def flush(array: Floats, tiny: float) -> None:
        kernels.flush(array, array.size, np.float32(tiny))

    def all_finite(array: Floats) -> bool:
        return bool(kernels.all_finite(array.view(np.int32), array.size))

    return Steps(
        "numba", adamw, adamw8, sgd, momentum, lion, squares, scale, accumulate, flush, all_finite
    )
