"""The optimized kernels: scalar loops in plain Python, written to be compiled by Numba.

Only ``p[i]`` indexing, an explicit ``n`` and scalar arguments, so that one source serves NumPy
arrays (just in time) and bare pointers (ahead of time). The order of operations is that of
reference.py; compiled without fast-math the bits are the same. ELEMENTWISE and REDUCTIONS name
what a compiler is to be told about each function.
"""

from __future__ import annotations

from typing import Any

import numpy as np

# An array of NumPy or a pointer of Numba: both know p[i] and nothing else is used.
Pointer = Any

_ABSOLUTE = np.int32(0x7FFFFFFF)
_INFINITY = np.int32(0x7F800000)


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
    adamw_mode0, adamw_mode1, sgd, momentum, lion, scale, accumulate, flush, all_finite,
)  # fmt: skip
# 'reassoc' lets a sum run in vector lanes.
REDUCTIONS = (squares,)
