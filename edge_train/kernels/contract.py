"""What every kernel backend offers: the Steps record, and the float32 scalars of an AdamW step.

The scalars are worked out once per step from Python floats, so that all backends start from the
same bits.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

_FLOAT = struct.Struct("f")


class AdamWScalars(NamedTuple):
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


def round32(value: float) -> float:
    """``value`` rounded to float32, quicker than by way of a NumPy scalar."""
    rounded: float = _FLOAT.unpack(_FLOAT.pack(value))[0]
    return rounded


def bias_correction(beta: float, step: int) -> float:
    """1 - beta^step, worked out in double and rounded to float32.

    For a beta that is a float32 value (an artifact's) beta^step is rounded to float32 first: the
    reference does, and for beta 0.999 it moves the update by up to 4e-6 of itself.
    """
    power = math.pow(beta, step)
    if round32(beta) == beta:
        power = round32(power)
    return round32(1.0 - power)


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
    beta1, beta2 = betas
    correction1 = bias_correction(beta1, step) if correct_bias else 1.0
    correction2 = bias_correction(beta2, step) if correct_bias else 1.0
    rate = lr = round32(lr)
    if mode == 1:
        # Each operation rounded to float32, as the reference rounds it.
        rate = lr * round32(round32(math.sqrt(correction2)) / correction1)
    decay = lr * round32(weight_decay)
    scalars = np.array(
        (beta1, 1.0 - beta1, beta2, 1.0 - beta2, eps, rate, decay, correction1, correction2),
        np.float32,
    )
    return AdamWScalars(mode, *scalars)


def clip_factor(squares: float, max_norm: float) -> tuple[float, float]:
    """The norm and min(1, max_norm / (norm + 1e-6)), NaN for a NaN sum of squares."""
    norm = math.sqrt(squares)
    factor = max_norm / (norm + 1e-6)
    return norm, factor if not factor > 1.0 else 1.0
