"""What every kernel backend offers: the Steps record, and the float32 scalars of an AdamW step.

The scalars are worked out once per step from Python floats, so that all backends start from the
same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class AdamWScalars:
    """The float32 scalars of one AdamW step.

    ``rest1`` is 1-beta1 and ``correction1`` 1-beta1^t, ``rate`` the learning rate (in mode 1 with
    the bias corrections folded in), ``decay`` the learning rate times the weight decay.
    """

    mode: int
    beta1: np.float32
    rest1: np.float32
    beta2: np.float32
    rest2: np.float32
    eps: np.float32
    rate: np.float32
    decay: np.float32
    correction1: np.float32
    correction2: np.float32


@dataclass(frozen=True)
class Steps:
    """One backend. Every array is flat, contiguous float32 and changed in place.

    ``adamw(weights, gradients, moment0, moment1, scalars)``; ``sgd(weights, gradients, lr)``;
    ``clip(gradients, max_norm)`` scales to the global norm and returns the norm before;
    ``accumulate(buffer, value)`` adds; ``all_finite(array)`` is False if there is a NaN or inf.
    """

    name: str
    adamw: Callable[[Floats, Floats, Floats, Floats, AdamWScalars], None]
    sgd: Callable[[Floats, Floats, float], None]
    clip: Callable[[Floats, float], float]
    accumulate: Callable[[Floats, Floats], None]
    all_finite: Callable[[Floats], bool]


def bias_correction(beta: float, step: int) -> np.float32:
    """1 - beta^step, worked out in double.

    For a beta that is a float32 value (an artifact's) beta^step is rounded to float32 first: the
    reference does, and for beta 0.999 it moves the update by up to 4e-6 of itself.
    """
    power = math.pow(beta, step)
    if float(np.float32(beta)) == beta:
        power = float(np.float32(power))
    correction: np.float32 = np.float32(1.0 - power)
    return correction


def adamw_scalars(
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    step: int,
    *,
    mode: int = 1,
    correct_bias: bool = True,
) -> AdamWScalars:
    """The scalars of step number ``step`` (the first is 1); ``mode`` is the op's adam_mode."""
    one = np.float32(1)
    correction1 = bias_correction(betas[0], step) if correct_bias else one
    correction2 = bias_correction(betas[1], step) if correct_bias else one
    lr32 = np.float32(lr)
    return AdamWScalars(
        mode=mode,
        beta1=np.float32(betas[0]),
        rest1=np.float32(1.0 - betas[0]),
        beta2=np.float32(betas[1]),
        rest2=np.float32(1.0 - betas[1]),
        eps=np.float32(eps),
        rate=lr32 if mode == 0 else lr32 * (np.sqrt(correction2) / correction1),
        decay=lr32 * np.float32(weight_decay),
        correction1=correction1,
        correction2=correction2,
    )


def clip_factor(squares: float, max_norm: float) -> tuple[float, float]:
    """The norm and min(1, max_norm / (norm + 1e-6)), NaN for a NaN sum of squares."""
    norm = math.sqrt(squares)
    factor = max_norm / (norm + 1e-6)
    return norm, factor if not factor > 1.0 else 1.0
