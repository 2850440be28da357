"""The definition of the kernels: whole NumPy arrays, float32, in the order of onnxruntime 1.19.2.

Slow and short on purpose. The other backends are tested against it, and it against the reference.
"""

from __future__ import annotations

import numpy as np

from edge_train.kernels.contract import AdamWScalars, Floats, Steps, clip_factor

# NaN and overflow are answered by all_finite and the caller, not by NumPy's warnings.
_quiet = np.errstate(all="ignore")


@_quiet
def adamw(
    weights: Floats, gradients: Floats, moment0: Floats, moment1: Floats, s: AdamWScalars
) -> None:
    """AdamW as com.microsoft AdamWOptimizer computes it.

    m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g^2
    mode 0: w = w - lr wd w, then w = w - lr m / (c1 (sqrt(v/c2) + eps))
    mode 1: w = w - (lr sqrt(c2)/c1) m / (sqrt(v) + eps), then w = w - lr wd w
    """
    if s.mode == 0 and s.decay:
        weights[...] = weights - s.decay * weights
    moment0[...] = s.beta1 * moment0 + s.rest1 * gradients
    moment1[...] = s.beta2 * moment1 + s.rest2 * gradients * gradients
    if s.mode == 0:
        bottom = s.correction1 * (np.sqrt(moment1 / s.correction2) + s.eps)
        weights[...] = weights - s.rate * moment0 / bottom
    else:
        weights[...] = weights - s.rate * moment0 / (np.sqrt(moment1) + s.eps)
    if s.mode == 1 and s.decay:
        weights[...] = weights - s.decay * weights


@_quiet
def sgd(weights: Floats, gradients: Floats, lr: float) -> None:
    """w = w - lr g."""
    weights[...] = weights - np.float32(lr) * gradients


@_quiet
def clip(gradients: Floats, max_norm: float) -> float:
    """g = g min(1, max_norm / (n + 1e-6)); returns n = sqrt(sum g^2), summed in double."""
    squares = float(np.sum(np.square(gradients, dtype=np.float64)))
    norm, factor = clip_factor(squares, max_norm)
    gradients[...] = gradients * np.float32(factor)
    return norm


@_quiet
def accumulate(buffer: Floats, value: Floats) -> None:
    """buffer = buffer + value."""
    buffer[...] = buffer + value


def all_finite(array: Floats) -> bool:
    """No NaN and no infinity."""
    return bool(np.all(np.isfinite(array)))


@_quiet
def flush(array: Floats, tiny: float) -> None:
    """Numbers smaller than ``tiny`` become 0; NaN stays."""
    array[...] = np.where(np.abs(array) < np.float32(tiny), array * np.float32(0), array)


STEPS = Steps("reference", adamw, sgd, clip, accumulate, flush, all_finite)
