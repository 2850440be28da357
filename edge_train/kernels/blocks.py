"""The NumPy backend: the formulas of reference.py, block by block in memory kept between steps.

A block of each array stays in the cache while a dozen ufuncs go over it, and nothing is allocated
per step. The operations and their order are the reference's, so the bits are the same.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator

import numpy as np

from edge_train.kernels import reference
from edge_train.kernels.contract import (
    AdamW8Scalars,
    AdamWScalars,
    LionScalars,
    MomentumScalars,
    Steps,
)
from edge_train.kernels.packed import Floats, Packed
from edge_train.kernels.square_root import sqrt

BLOCK = 65536  # elements

_quiet = np.errstate(all="ignore")


def _blocks(size: int) -> Iterator[slice]:
    return (slice(start, min(start + BLOCK, size)) for start in range(0, size, BLOCK))


def _mean(m: Floats, beta: float, g: Floats, rest: float, t: Floats, out: Floats) -> None:
    """out = beta m + rest g, by way of t."""
    np.multiply(m, beta, out=out)
    np.multiply(g, rest, out=t)
    np.add(out, t, out=out)


class _Scratch(threading.local):
    """Two float32 blocks of each thread, for good; ``wide`` sees both as one of float64."""

    def __init__(self) -> None:
        self._pair = np.empty((2, 0), np.float32)

    def take(self, size: int) -> tuple[Floats, Floats]:
        if self._pair.shape[1] < size:
            # An even length keeps the second block, and the float64 view, aligned.
            self._pair = np.empty((2, size + size % 2), np.float32)
        return self._pair[0, :size], self._pair[1, :size]

    def wide(self, size: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        self.take(size)
        return self._pair.reshape(-1).view(np.float64)[:size]


class _Blocks:
    def __init__(self) -> None:
        self._scratch = _Scratch()

    @_quiet
    def adamw(
        self, weights: Floats, gradients: Floats, moment0: Floats, moment1: Floats, s: AdamWScalars
    ) -> None:
        update = self._update_mode0 if s.mode == 0 else self._update_mode1
        for at in _blocks(weights.size):
            p, g, m, v = weights[at], gradients[at], moment0[at], moment1[at]
            t, _ = self._scratch.take(p.size)
            _mean(m, s.beta1, g, s.rest1, t, out=m)
            np.multiply(v, s.beta2, out=v)
            np.multiply(g, s.rest2, out=t)
            np.multiply(t, g, out=t)
            np.add(v, t, out=v)
            update(p, m, v, s)

    def _update_mode0(self, p: Floats, m: Floats, v: Floats, s: AdamWScalars) -> None:
        t, bottom = self._scratch.take(p.size)
        self._decay(p, s)
        np.divide(v, s.correction2, out=bottom)
        sqrt(bottom, out=bottom)
        np.add(bottom, s.eps, out=bottom)
        np.multiply(bottom, s.correction1, out=bottom)
        np.multiply(m, s.rate, out=t)
        np.divide(t, bottom, out=t)
        np.subtract(p, t, out=p)

    def _update_mode1(self, p: Floats, m: Floats, v: Floats, s: AdamWScalars) -> None:
        t, bottom = self._scratch.take(p.size)
        sqrt(v, out=bottom)
        np.add(bottom, s.eps, out=bottom)
        np.multiply(m, s.rate, out=t)
        np.divide(t, bottom, out=t)
        np.subtract(p, t, out=p)
        self._decay(p, s)

    def _decay(self, p: Floats, s: AdamWScalars) -> None:
        if s.decay:
            t, _ = self._scratch.take(p.size)
            np.multiply(p, s.decay, out=t)
            np.subtract(p, t, out=p)

    @_quiet
    def sgd(self, weights: Floats, gradients: Floats, lr: float) -> None:
        lr32 = np.float32(lr)
        for at in _blocks(weights.size):
            p, g = weights[at], gradients[at]
            t, _ = self._scratch.take(p.size)
            np.multiply(g, lr32, out=t)
            np.subtract(p, t, out=p)

    @_quiet
    def momentum(
        self, weights: Floats, gradients: Floats, moment: Floats, s: MomentumScalars
    ) -> None:
        for at in _blocks(weights.size):
            p, d, m = weights[at], gradients[at], moment[at]
            t, other = self._scratch.take(p.size)
            if s.decay:
                np.multiply(p, s.decay, out=other)
                d = np.add(d, other, out=other)
            np.multiply(m, s.mu, out=m)
            np.add(m, d, out=m)
            np.multiply(m, s.mu if s.nesterov else s.lr, out=t)
            if s.nesterov:
                np.add(d, t, out=t)
                np.multiply(t, s.lr, out=t)
            np.subtract(p, t, out=p)

    @_quiet
    def lion(self, weights: Floats, gradients: Floats, moment: Floats, s: LionScalars) -> None:
        for at in _blocks(weights.size):
            p, g, m = weights[at], gradients[at], moment[at]
            t, c = self._scratch.take(p.size)
            _mean(m, s.beta1, g, s.rest1, t, out=c)
            _mean(m, s.beta2, g, s.rest2, t, out=m)
            if s.decay:
                np.multiply(p, s.decay, out=t)
                np.subtract(p, t, out=p)
            np.sign(c, out=c)
            np.multiply(c, s.lr, out=c)
            np.subtract(p, c, out=p)

    @_quiet
    def squares(self, gradients: Floats) -> float:
        total = 0.0
        for at in _blocks(gradients.size):
            block = gradients[at]
            wide = self._scratch.wide(block.size)
            wide[...] = block
            total += float(np.dot(wide, wide))
        return total


@_quiet
def _scale(gradients: Floats, factor: float) -> None:
    np.multiply(gradients, np.float32(factor), out=gradients)


@_quiet
def _accumulate(buffer: Floats, value: Floats) -> None:
    np.add(buffer, value, out=buffer)


@_quiet
def _flush(array: Floats, tiny: float) -> None:
    for at in _blocks(array.size):
        block = array[at]
        np.multiply(block, 0, out=block, where=np.abs(block) < np.float32(tiny))


@_quiet
def _all_finite(array: Floats) -> bool:
    # One pass at the speed of memory. Squares of large finite numbers overflow too: look closer.
    if math.isfinite(np.dot(array, array)):
        return True
    return all(bool(np.isfinite(array[at]).all()) for at in _blocks(array.size))


def _adamw8(
    weights: Floats, gradients: Floats, moments: Packed, at: slice, s: AdamW8Scalars
) -> None:
    """The reference's formula over a few blocks at a time: its temporary arrays stay small."""
    for part in moments.parts(BLOCK // 4, at):
        here = slice(part.start - at.start, part.stop - at.start)
        reference.adamw8(weights[here], gradients[here], moments, part, s)


def build() -> Steps:
    """The NumPy backend with scratch memory of its own: 512 KB a thread; one per optimizer."""
    blocks = _Blocks()
    return Steps(
        "numpy",
        blocks.adamw,
        _adamw8,
        blocks.sgd,
        blocks.momentum,
        blocks.lion,
        blocks.squares,
        _scale,
        _accumulate,
        _flush,
        _all_finite,
    )
