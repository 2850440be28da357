"""What every kernel backend offers: the Steps record, and the float32 scalars of an AdamW step.

The scalars are worked out once per step from Python floats, so that all backends start from the
same bits.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from edge_train.kernels.packed import Floats as Floats
from edge_train.kernels.packed import Packed, seed

_FLOAT, _PAIR, _TRIPLE, _FOUR, _NINE = (struct.Struct(f"{n}f") for n in (1, 2, 3, 4, 9))


def _scalar(index: int, meaning: str) -> property:
    return property(lambda scalars: scalars.numbers[index], doc=meaning)


@dataclass(frozen=True, slots=True)
class AdamWScalars:
    """The scalars of an AdamW step: ``numbers`` are float32 values, in the order of the names."""

    mode: int
    numbers: tuple[float, ...]

    @property
    def packed(self) -> Floats:
        """The numbers as a float32 array."""
        return np.array(self.numbers, np.float32)

    beta1 = _scalar(0, "decay of the first moment")
    rest1 = _scalar(1, "1 - beta1")
    beta2 = _scalar(2, "decay of the second moment")
    rest2 = _scalar(3, "1 - beta2")
    eps = _scalar(4, "what is added to the root")
    rate = _scalar(5, "learning rate, in mode 1 with the bias corrections folded in")
    decay = _scalar(6, "learning rate times weight decay")
    correction1 = _scalar(7, "1 - beta1^t")
    correction2 = _scalar(8, "1 - beta2^t")


@dataclass(frozen=True, slots=True)
class AdamW8Scalars:
    """The scalars of an AdamW step on 8-bit moments: both modes in one form, as float32 values.

    w = w - before w, then w = w - rate m / (s + eps), then w = w - after w.
    """

    beta1: float
    rest1: float
    beta2: float
    rest2: float
    eps: float
    rate: float
    before: float
    after: float
    seed: int


@dataclass(frozen=True, slots=True)
class MomentumScalars:
    """The scalars of an SGD step with momentum, each rounded to float32."""

    mu: float
    lr: float
    decay: float
    nesterov: bool


@dataclass(frozen=True, slots=True)
class LionScalars:
    """The scalars of a Lion step, each rounded to float32; ``rest`` is 1 - beta."""

    beta1: float
    rest1: float
    beta2: float
    rest2: float
    lr: float
    decay: float


@dataclass(frozen=True)
class Steps:
    """One backend. Every array is flat, contiguous float32 and changed in place.

    ``adamw(weights, gradients, moment0, moment1, scalars)``; ``adamw8(weights, gradients, moments,
    at, scalars)``, where ``at`` is the part (whole blocks) of all moments; ``sgd(weights,
    gradients, lr)``; ``momentum`` and ``lion(weights, gradients, moment0, scalars)``;
    ``squares(gradients)`` is the sum of squares in double; ``scale(gradients, factor)``;
    ``accumulate(buffer, value)`` adds; ``flush(array, tiny)`` zeroes what is smaller than tiny;
    ``all_finite(array)`` is False if there is a NaN or inf.
    """

    name: str
    adamw: Callable[[Floats, Floats, Floats, Floats, AdamWScalars], None]
    adamw8: Callable[[Floats, Floats, Packed, slice, AdamW8Scalars], None]
    sgd: Callable[[Floats, Floats, float], None]
    momentum: Callable[[Floats, Floats, Floats, MomentumScalars], None]
    lion: Callable[[Floats, Floats, Floats, LionScalars], None]
    squares: Callable[[Floats], float]
    scale: Callable[[Floats, float], None]
    accumulate: Callable[[Floats, Floats], None]
    flush: Callable[[Floats, float], None]
    all_finite: Callable[[Floats], bool]

    def clip(self, gradients: Floats, max_norm: float) -> float:
        """g = g min(1, max_norm / (n + 1e-6)); returns the global norm n before."""
        norm, factor = clip_factor(self.squares(gradients), max_norm)
        if factor != 1.0:
            self.scale(gradients, factor)
        return norm


def round32(value: float) -> float:
    """``value`` rounded to float32, quicker than by way of a NumPy scalar."""
    rounded: float = _FLOAT.unpack(_FLOAT.pack(value))[0]
    return rounded


def bias_correction(beta: float, step: int) -> float:
    """1 - beta^step, worked out in double and rounded to float32.

    For a beta that is a float32 value (an artifact's) beta^step is rounded to float32 first: the
    reference does, and for beta 0.999 it moves the update by up to 4e-6 of itself.
    """
    return bias_corrections((beta, beta), step)[0]


def bias_corrections(betas: tuple[float, float], step: int) -> tuple[float, float]:
    """``bias_correction`` of both betas."""
    first, second = betas
    power1, power2 = math.pow(first, step), math.pow(second, step)
    rounded1, rounded2, single1, single2 = _FOUR.unpack(_FOUR.pack(power1, power2, first, second))
    power1 = rounded1 if single1 == first else power1
    power2 = rounded2 if single2 == second else power2
    corrections: tuple[float, float] = _PAIR.unpack(_PAIR.pack(1.0 - power1, 1.0 - power2))
    return corrections


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
    correction1 = correction2 = 1.0
    if correct_bias:
        correction1, correction2 = bias_corrections(betas, step)
    lr, decay, root = _TRIPLE.unpack(_TRIPLE.pack(lr, weight_decay, math.sqrt(correction2)))
    # Each operation rounded to float32, as the reference rounds it.
    rate = lr * round32(root / correction1) if mode == 1 else lr
    means = (beta1, 1.0 - beta1, beta2, 1.0 - beta2)
    packed = _NINE.pack(*means, eps, rate, lr * decay, correction1, correction2)
    return AdamWScalars(mode, _NINE.unpack(packed))


def adamw8_scalars(s: AdamWScalars, step: int) -> AdamW8Scalars:
    """The scalars of step number ``step`` for 8-bit moments, from those of the plain form."""
    beta1, rest1, beta2, rest2, eps, rate, decay, correction1, correction2 = s.numbers
    before, after = (decay, 0.0) if s.mode == 0 else (0.0, decay)
    if s.mode == 0:
        # rate m / (c1 (sqrt(v / c2) + eps)) with the root of c2 multiplied out
        root = round32(math.sqrt(correction2))
        rate, eps = round32(rate * round32(root / correction1)), round32(eps * root)
    means = (beta1, rest1, beta2, rest2)
    return AdamW8Scalars(*means, eps, rate, before, after, seed(step))


def momentum_scalars(
    lr: float, momentum: float, weight_decay: float, nesterov: bool
) -> MomentumScalars:
    """The scalars of an SGD step with momentum."""
    return MomentumScalars(round32(momentum), round32(lr), round32(weight_decay), nesterov)


def lion_scalars(lr: float, betas: tuple[float, float], weight_decay: float) -> LionScalars:
    """The scalars of a Lion step."""
    beta1, beta2 = betas
    lr = round32(lr)
    means = (round32(beta1), round32(1.0 - beta1), round32(beta2), round32(1.0 - beta2))
    return LionScalars(*means, lr, round32(lr * round32(weight_decay)))


def clip_factor(squares: float, max_norm: float) -> tuple[float, float]:
    """The norm and min(1, max_norm / (norm + 1e-6)), NaN for a NaN sum of squares."""
    norm = math.sqrt(squares)
    factor = max_norm / (norm + 1e-6)
    return norm, factor if not factor > 1.0 else 1.0
