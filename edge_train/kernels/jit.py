"""The Numba backend: steps.py compiled just in time, at the first call of each kernel.

Nothing is cached on disk, and Numba is imported only when this backend is asked for.
"""

from __future__ import annotations

from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from edge_train.kernels import steps
from edge_train.kernels.contract import AdamWScalars, Floats, Steps, clip_factor


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
    return SimpleNamespace(**table)


@lru_cache(maxsize=1)
def build() -> Steps:
    """The compiled backend, one per process; ImportError where Numba is missing."""
    kernels = _compiled()

    def adamw(p: Floats, g: Floats, m: Floats, v: Floats, s: AdamWScalars) -> None:
        common = (s.beta1, s.rest1, s.beta2, s.rest2, s.eps, s.rate, s.decay)
        if s.mode == 0:
            kernels.adamw_mode0(p, g, m, v, p.size, *common, s.correction1, s.correction2)
        else:
            kernels.adamw_mode1(p, g, m, v, p.size, *common)

    def sgd(weights: Floats, gradients: Floats, lr: float) -> None:
        kernels.sgd(weights, gradients, weights.size, np.float32(lr))

    def clip(gradients: Floats, max_norm: float) -> float:
        norm, factor = clip_factor(kernels.squares(gradients, gradients.size), max_norm)
        if factor != 1.0:
            kernels.scale(gradients, gradients.size, np.float32(factor))
        return norm

    def accumulate(buffer: Floats, value: Floats) -> None:
        kernels.accumulate(buffer, value, buffer.size)

    def all_finite(array: Floats) -> bool:
        return bool(kernels.all_finite(array.view(np.int32), array.size))

    return Steps("numba", adamw, sgd, clip, accumulate, all_finite)
