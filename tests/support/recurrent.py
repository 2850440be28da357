"""LSTM and GRU in float64, one sequence and one step at a time, as the ONNX text has them.

The gradients are slopes of these forwards: they share no formula with the lowering.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from support.lowering import Array, Arrays

Function = Callable[[Array], Array]

_ACTIVATIONS: dict[str, Callable[[Array, float, float], Array]] = {
    "Sigmoid": lambda x, alpha, beta: 1 / (1 + np.exp(-x)),
    "Tanh": lambda x, alpha, beta: np.tanh(x),
    "Relu": lambda x, alpha, beta: np.maximum(x, 0),
    "LeakyRelu": lambda x, alpha, beta: np.where(x < 0, alpha * x, x),
    "ThresholdedRelu": lambda x, alpha, beta: np.where(x > alpha, x, 0),
    "HardSigmoid": lambda x, alpha, beta: np.clip(alpha * x + beta, 0, 1),
    "Elu": lambda x, alpha, beta: np.where(x < 0, alpha * np.expm1(x), x),
    "Softsign": lambda x, alpha, beta: x / (1 + np.abs(x)),
    "Softplus": lambda x, alpha, beta: np.log1p(np.exp(x)),
    "Affine": lambda x, alpha, beta: alpha * x + beta,
    "ScaledTanh": lambda x, alpha, beta: alpha * np.tanh(beta * x),
}
_ALPHA = {"LeakyRelu": 0.01, "HardSigmoid": 0.2, "Elu": 1.0}
_BETA = {"HardSigmoid": 0.5}
_USES_ALPHA = ("LeakyRelu", "ThresholdedRelu", "HardSigmoid", "Elu", "Affine", "ScaledTanh")
_USES_BETA = ("HardSigmoid", "Affine", "ScaledTanh")

DIRECTIONS = {"forward": (1,), "reverse": (-1,), "bidirectional": (1, -1)}
HIDDEN = 3


def functions(defaults: Sequence[str], attrs: Mapping[str, Any]) -> list[list[Function]]:
    """The activations of each direction, the first two clipped."""
    signs = DIRECTIONS[attrs.get("direction", "forward")]
    names = list(attrs.get("activations", list(defaults) * len(signs)))
    alphas, betas = (iter(attrs.get(f"activation_{key}", ())) for key in ("alpha", "beta"))
    bound = attrs.get("clip", np.inf)
    made: list[Function] = []
    for index, name in enumerate(names):
        alpha = float(np.float32(next(alphas, _ALPHA.get(name, 0)))) if name in _USES_ALPHA else 0
        beta = float(np.float32(next(betas, _BETA.get(name, 0)))) if name in _USES_BETA else 0
        limit = np.float32(bound) if index % len(defaults) < 2 else np.inf
        made.append(
            lambda x, f=_ACTIVATIONS[name], a=alpha, b=beta, m=limit: f(np.clip(x, -m, m), a, b)
        )
    count = len(defaults)
    return [made[start : start + count] for start in range(0, len(made), count)]


@dataclass(frozen=True)
class _Walk:
    """The inputs of a layer by name in float64, missing ones as zeros."""

    values: dict[str, Array]
    signs: tuple[int, ...]
    gates: int

    @staticmethod
    def of(feeds: Arrays, attrs: Mapping[str, Any], gates: int) -> _Walk:
        values = {name: np.asarray(value, np.float64) for name, value in feeds.items()}
        steps, batch, _ = values["x"].shape
        signs = DIRECTIONS[attrs.get("direction", "forward")]
        many = len(signs)
        values.setdefault("b", np.zeros((many, 2 * gates * HIDDEN)))
        values.setdefault("lens", np.full(batch, steps))
        for name in ("h0", "c0"):
            values.setdefault(name, np.zeros((many, batch, HIDDEN)))
        values.setdefault("p", np.zeros((many, 3 * HIDDEN)))
        return _Walk(values, signs, gates)

    def __iter__(self) -> Iterator[tuple[int, int, list[int]]]:
        """Direction, sequence, its steps in the order of reading."""
        for direction, sign in enumerate(self.signs):
            for sequence, length in enumerate(self.values["lens"].astype(int)):
                yield direction, sequence, list(range(length))[::sign]

    def weights(self, direction: int) -> tuple[list[Array], list[Array], list[Array], list[Array]]:
        """W, R, W's bias and R's bias by gate."""
        inner, outer = np.split(self.values["b"][direction], 2)
        tensors = (self.values["w"][direction], self.values["r"][direction], inner, outer)
        w, r, wb, rb = (np.split(tensor, self.gates) for tensor in tensors)
        return w, r, wb, rb

    def empty(self, width: int = 1) -> Array:
        """Zeros for a sequence of states (T, D, B, width * H)."""
        steps, batch, _ = self.values["x"].shape
        return np.zeros((steps, len(self.signs), batch, width * HIDDEN))


def lstm(feeds: Arrays, **attrs: Any) -> dict[str, Array]:
    """h, h_last, c_last, c, iofc of inputs x, w, r [b, lens, h0, c0, p]."""
    walk = _Walk.of(feeds, attrs, 4)
    h_all, c_all, iofc = walk.empty(), walk.empty(), walk.empty(4)
    h_last, c_last = (np.zeros(h_all.shape[1:]) for _ in range(2))
    acts = functions(("Sigmoid", "Tanh", "Tanh"), attrs)
    for d, n, steps in walk:
        (w, r, wb, rb), (f_of, g_of, h_of) = walk.weights(d), acts[d]
        see = np.split(walk.values["p"][d], 3)
        h, c = walk.values["h0"][d, n], walk.values["c0"][d, n]
        for t in steps:
            x = walk.values["x"][t, n]
            i, o, f, g = (w[k] @ x + r[k] @ h + wb[k] + rb[k] for k in range(4))
            i = f_of(i + see[0] * c)
            f = 1 - i if attrs.get("input_forget") else f_of(f + see[2] * c)
            g = g_of(g)
            c = f * c + i * g
            o = f_of(o + see[1] * c)
            h = o * h_of(c)
            h_all[t, d, n], c_all[t, d, n], iofc[t, d, n] = h, c, np.concatenate([i, o, f, g])
        if steps:
            h_last[d, n], c_last[d, n] = h, c
    return {"h": h_all, "h_last": h_last, "c_last": c_last, "c": c_all, "iofc": iofc}


def gru(feeds: Arrays, **attrs: Any) -> dict[str, Array]:
    """h, h_last, zrh of inputs x, w, r [b, lens, h0]."""
    walk = _Walk.of(feeds, attrs, 3)
    h_all, zrh = walk.empty(), walk.empty(3)
    h_last = np.zeros(h_all.shape[1:])
    acts = functions(("Sigmoid", "Tanh"), attrs)
    for d, n, steps in walk:
        (w, r, wb, rb), (f_of, g_of) = walk.weights(d), acts[d]
        h = walk.values["h0"][d, n]
        for t in steps:
            x = walk.values["x"][t, n]
            z, reset = (f_of(w[k] @ x + r[k] @ h + wb[k] + rb[k]) for k in (0, 1))
            if attrs.get("linear_before_reset"):
                new = g_of(w[2] @ x + reset * (r[2] @ h + rb[2]) + wb[2])
            else:
                new = g_of(w[2] @ x + r[2] @ (reset * h) + rb[2] + wb[2])
            h = (1 - z) * new + z * h
            h_all[t, d, n], zrh[t, d, n] = h, np.concatenate([z, reset, new])
        if steps:
            h_last[d, n] = h
    return {"h": h_all, "h_last": h_last, "zrh": zrh}


def rnn(feeds: Arrays, **attrs: Any) -> dict[str, Array]:
    """h, h_last of inputs x, w, r [b, lens, h0]."""
    walk = _Walk.of(feeds, attrs, 1)
    h_all = walk.empty()
    h_last = np.zeros(h_all.shape[1:])
    acts = functions(("Tanh",), attrs)
    for d, n, steps in walk:
        (w,), (r,), (wb,), (rb,) = walk.weights(d)
        h = walk.values["h0"][d, n]
        for t in steps:
            h = h_all[t, d, n] = acts[d][0](w @ walk.values["x"][t, n] + r @ h + wb + rb)
        if steps:
            h_last[d, n] = h
    return {"h": h_all, "h_last": h_last}


def gradients(
    layer: Callable[..., dict[str, Array]],
    feeds: Arrays,
    weights: Arrays,
    wanted: Sequence[str],
    **attrs: Any,
) -> dict[str, Array]:
    """Slopes of the sum of ``weights`` times outputs (by name), by each wanted input."""

    def total(name: str, value: Array) -> float:
        made = layer({**feeds, name: value}, **attrs)
        return sum(float(np.sum(made[key] * weight)) for key, weight in weights.items())

    found = {}
    for name in wanted:
        value = np.asarray(feeds[name], np.float64)
        found[name] = np.zeros(value.shape)
        for index in np.ndindex(*value.shape):
            step = np.zeros(value.shape)
            step[index] = 1e-5
            found[name][index] = (total(name, value + step) - total(name, value - step)) / 2e-5
    return found
