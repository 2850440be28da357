"""The definition of the kernels: whole NumPy arrays, float32, in the order of onnxruntime 1.19.2.

Slow and short on purpose. The other backends are tested against it, and it against the reference.
"""

from __future__ import annotations

import numpy as np

from edge_train.kernels.contract import (
    AdamW8Scalars,
    AdamWScalars,
    LionScalars,
    MomentumScalars,
    Steps,
)
from edge_train.kernels.packed import ROOT_REST, STRIDE, TINY, Floats, Packed
from edge_train.kernels.square_root import sqrt

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
        bottom = s.correction1 * (sqrt(moment1 / s.correction2) + s.eps)
        weights[...] = weights - s.rate * moment0 / bottom
    else:
        weights[...] = weights - s.rate * moment0 / (sqrt(moment1) + s.eps)
    if s.mode == 1 and s.decay:
        weights[...] = weights - s.decay * weights


@_quiet
def adamw8(
    weights: Floats, gradients: Floats, moments: Packed, at: slice, s: AdamW8Scalars
) -> None:
    """AdamW as above on moments of 8 bits (packed.py), rounded up or down by dice.

    r = m / (sqrt(v) + TINY) and sqrt(v) are what is stored.
    """
    tiny = np.float32(TINY)
    ratio, root = moments._decode(at)
    g, w = gradients, weights
    m = s.beta1 * (ratio * (root + tiny)) + s.rest1 * g
    root = sqrt(s.beta2 * (root * root) + s.rest2 * g * g)
    quotient = m / ((root + s.eps) * (root + tiny))
    w = w - s.before * w
    w = w - s.rate * (quotient * (root + tiny))
    weights[...] = w - s.after * w
    ratio = quotient * (root + s.eps)
    index = np.arange(at.start, at.stop, dtype=np.uint32)
    dice = (index * np.uint32(STRIDE) + np.uint32(s.seed)).view(np.int32)
    up = (dice >> 16).astype(np.float32) * np.float32(2.0**-16)
    moments.store(at, ratio, ratio, root, up, dice & ROOT_REST)


@_quiet
def sgd(weights: Floats, gradients: Floats, lr: float) -> None:
    """w = w - lr g."""
    weights[...] = weights - np.float32(lr) * gradients


@_quiet
def momentum(weights: Floats, gradients: Floats, moment: Floats, s: MomentumScalars) -> None:
    """d = g + wd w;  m = mu m + d;  w = w - lr m, with Nesterov w = w - lr (d + mu m)."""
    d = gradients + s.decay * weights if s.decay else gradients
    moment[...] = s.mu * moment + d
    weights[...] = weights - s.lr * (d + s.mu * moment if s.nesterov else moment)


@_quiet
def lion(weights: Floats, gradients: Floats, moment: Floats, s: LionScalars) -> None:
    """c = b1 m + (1-b1) g;  m = b2 m + (1-b2) g;  w = w - lr wd w, then w = w - lr sign(c)."""
    c = s.beta1 * moment + s.rest1 * gradients
    moment[...] = s.beta2 * moment + s.rest2 * gradients
    if s.decay:
        weights[...] = weights - s.decay * weights
    weights[...] = weights - s.lr * np.sign(c)


@_quiet
def squares(gradients: Floats) -> float:
    """The sum of g^2 in double: NaN or inf if and only if a g is."""
    return float(np.sum(np.square(gradients, dtype=np.float64)))


@_quiet
def scale(gradients: Floats, factor: float) -> None:
    """g = g factor."""
    gradients[...] = gradients * np.float32(factor)


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


STEPS = Steps(
    "reference", adamw, adamw8, sgd, momentum, lion, squares, scale, accumulate, flush, all_finite
)
