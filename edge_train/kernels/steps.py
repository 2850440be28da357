"""The optimized kernels: scalar loops in plain Python, written to be compiled by Numba.

Only ``p[i]`` indexing, an explicit ``n`` and scalar arguments, so that one source serves NumPy
arrays (just in time) and bare pointers (ahead of time). The order of operations is that of
reference.py; compiled without fast-math the bits are the same. ELEMENTWISE and REDUCTIONS name
what a compiler is to be told about each function.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from edge_train.kernels import packed

# An array of NumPy or a pointer of Numba: both know p[i] and nothing else is used.
Pointer = Any

_ABSOLUTE = np.int32(0x7FFFFFFF)
_INFINITY = np.int32(0x7F800000)

# the codes of packed.py
_RATIO_TOP = np.float32(packed.RATIO_TOP)
_RATIO_ZERO = np.int32(packed.RATIO_ZERO)
_SHIFTED = np.float32(packed.RATIO_ZERO + 0.5)  # the dice go from -0.5 to 0.5
_UNIT = np.float32(2.0**-16)
_LEAST_RATIO = np.float32(packed.LEAST_RATIO)
_LEAST_ROOT = np.float32(packed.LEAST_ROOT)
_ROOT_LOW = np.int32(packed.ROOT_LOW)
_ROOT_SHIFT = np.int32(packed.ROOT_SHIFT)
_ROOT_REST = np.int32(packed.ROOT_REST)
_TINY = np.float32(packed.TINY)
_NUDGE = np.float32(packed.NUDGE)
_COARSE = np.int32(packed.COARSE)
_STRIDE = packed.STRIDE
_NONE, _ONE, _TOP, _SIXTEEN = np.int32(0), np.int32(1), np.int32(255), np.int32(16)


def adamw_mode0(
    p: Pointer, g: Pointer, m: Pointer, v: Pointer, n: int,
    beta1: Any, rest1: Any, beta2: Any, rest2: Any, eps: Any, rate: Any, decay: Any,
    correction1: Any, correction2: Any,
) -> None:  # fmt: skip
    """AdamW, adam_mode 0: decay first, eps added to the corrected root."""
    for i in range(n):
        mi = beta1 * m[i] + rest1 * g[i]
        vi = beta2 * v[i] + rest2 * g[i] * g[i]
        m[i] = mi
        v[i] = vi
        w = p[i]
        if decay != 0:
            w = w - decay * w
        p[i] = w - rate * mi / (correction1 * (np.sqrt(vi / correction2) + eps))


def adamw_mode1(
    p: Pointer, g: Pointer, m: Pointer, v: Pointer, n: int,
    beta1: Any, rest1: Any, beta2: Any, rest2: Any, eps: Any, rate: Any, decay: Any,
) -> None:  # fmt: skip
    """AdamW, adam_mode 1: corrections folded into ``rate``, decay last."""
    for i in range(n):
        mi = beta1 * m[i] + rest1 * g[i]
        vi = beta2 * v[i] + rest2 * g[i] * g[i]
        m[i] = mi
        v[i] = vi
        w = p[i] - rate * mi / (np.sqrt(vi) + eps)
        if decay != 0:
            w = w - decay * w
        p[i] = w


def adamw8(
    p: Pointer, g: Pointer, ratio: Pointer, root: Pointer, ratio_max: Pointer, root_max: Pointer,
    bounds: Pointer, ratios: Pointer, roots: Pointer, table: Pointer,
    origin: int, first: int, last: int,
    beta1: Any, rest1: Any, beta2: Any, rest2: Any, eps: Any, rate: Any, before: Any, after: Any,
    seed: int,
) -> None:  # fmt: skip
    """AdamW on moments of 8 bits, blocks ``first`` to ``last`` (packed.py explains the codes).

    ``p`` and ``g`` begin at element ``origin`` of the buffers; ``ratios`` and ``roots`` are scratch
    for one block; decay comes ``before`` or ``after``.
    """
    for block in range(first, last):
        start = bounds[block]
        n = bounds[block + 1] - start
        place = start - origin
        ratio_step = ratio_max[block] / _RATIO_TOP
        top = root_max[block]
        highest_ratio = np.int32(0)
        highest_root = np.int32(0)
        for i in range(n):
            code = np.int32(np.int32(root[start + i]) + _ROOT_LOW)
            s = np.int32(code << _ROOT_SHIFT).view(np.float32) * top
            code = np.int32(np.int32(ratio[start + i]) - _RATIO_ZERO)
            m = np.float32(code) * ratio_step * (s + _TINY)
            gi = g[place + i]
            m = beta1 * m + rest1 * gi
            s = np.sqrt(beta2 * (s * s) + rest2 * gi * gi)
            quotient = m / ((s + eps) * (s + _TINY))
            r = np.float32(quotient * (s + eps))
            w = p[place + i]
            w = w - before * w
            w = w - rate * (quotient * (s + _TINY))
            p[place + i] = w - after * w
            ratios[i] = r
            roots[i] = s
            highest_ratio = max(highest_ratio, np.int32(r.view(np.int32) & _ABSOLUTE))
            highest_root = max(highest_root, np.float32(s).view(np.int32))
        limit = np.int32(highest_ratio & _COARSE).view(np.float32)
        limit = limit if limit >= _LEAST_RATIO else np.float32(0)
        ratio_max[block] = limit
        ratio_rate = _RATIO_TOP * _NUDGE / limit if limit > 0 else np.float32(0)
        top = np.int32(highest_root).view(np.float32)
        top = top if top >= _LEAST_ROOT else np.float32(0)
        root_max[block] = top
        root_rate = _NUDGE / top if top > 0 else np.float32(0)
        offset = np.int32(start * _STRIDE + seed)
        for i in range(n):
            dice = np.int32(table[i] + offset)
            up = np.float32(np.int32(dice >> _SIXTEEN)) * _UNIT
            code = np.int32(np.float32(ratios[i] * ratio_rate + up + _SHIFTED))
            ratio[start + i] = np.uint8(min(max(code, _ONE), _TOP))
            bits = np.float32(roots[i] * root_rate).view(np.int32)
            bits = np.int32(bits + np.int32(dice & _ROOT_REST))
            code = np.int32(np.int32(bits >> _ROOT_SHIFT) - _ROOT_LOW)
            root[start + i] = np.uint8(min(max(code, _NONE), _TOP))


def sgd(p: Pointer, g: Pointer, n: int, lr: Any) -> None:
    """w = w - lr g."""
    for i in range(n):
        p[i] = p[i] - lr * g[i]


def momentum(
    p: Pointer, g: Pointer, m: Pointer, n: int, mu: Any, lr: Any, decay: Any, nesterov: Any
) -> None:
    """SGD with momentum; weight decay joins the gradient."""
    for i in range(n):
        d = g[i]
        if decay != 0:
            d = d + decay * p[i]
        mi = mu * m[i] + d
        m[i] = mi
        if nesterov != 0:
            mi = d + mu * mi
        p[i] = p[i] - lr * mi


def lion(
    p: Pointer, g: Pointer, m: Pointer, n: int,
    beta1: Any, rest1: Any, beta2: Any, rest2: Any, lr: Any, decay: Any,
) -> None:  # fmt: skip
    """Lion: a step of ``lr`` along the sign of a mean of gradients."""
    one = np.float32(1)
    for i in range(n):
        c = beta1 * m[i] + rest1 * g[i]
        m[i] = beta2 * m[i] + rest2 * g[i]
        sign = one if c > 0 else (-one if c < 0 else c)
        w = p[i]
        if decay != 0:
            w = w - decay * w
        p[i] = w - lr * sign


def scale(g: Pointer, n: int, factor: Any) -> None:
    """g = g factor."""
    for i in range(n):
        g[i] = g[i] * factor


def accumulate(buffer: Pointer, value: Pointer, n: int) -> None:
    """buffer = buffer + value."""
    for i in range(n):
        buffer[i] = buffer[i] + value[i]


def squares(g: Pointer, n: int) -> Any:
    """The sum of g^2 in double."""
    total = np.float64(0)
    for i in range(n):
        x = np.float64(g[i])
        total += x * x
    return total


def flush(array: Pointer, n: int, tiny: Any) -> None:
    """Numbers smaller than ``tiny`` become 0."""
    for i in range(n):
        x = array[i]
        array[i] = x if abs(x) >= tiny else x * np.float32(0)


def all_finite(bits: Pointer, n: int) -> bool:
    """No NaN and no infinity; ``bits`` is the float32 data seen as int32.

    Integers, because a compiler in a fast-math mode may take NaN for impossible.
    """
    top = np.int32(0)
    for i in range(n):
        top = max(top, np.int32(bits[i] & _ABSOLUTE))
    return bool(top < _INFINITY)


# No fast-math: contracting to fused multiply-add saves 6 % at most (roots and divisions set the
# pace) and would cost the equality of bits between backends.
ELEMENTWISE = (
    adamw_mode0, adamw_mode1, adamw8, sgd, momentum, lion, scale, accumulate, flush, all_finite,
)  # fmt: skip
# 'reassoc' lets a sum run in vector lanes.
REDUCTIONS = (squares,)
