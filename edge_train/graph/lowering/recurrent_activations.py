"""The activations of LSTM and GRU: forward, and the derivative told from the output alone.

The gradient ops are given what a gate put out, not what went in. Everything is made of basic ops:
onnxruntime has HardSigmoid, Elu and others for float32 only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from edge_train import dtypes
from edge_train.graph import ir
from edge_train.graph.formula import Formula, Refuse

_Rule = Callable[[Formula, str, float, float], str]


def _at_least(b: Formula, x: str, bound: float) -> str:
    return b.op("Max", x, b.scalar(bound, x))


def _at_most(b: Formula, x: str, bound: float) -> str:
    return b.op("Min", x, b.scalar(bound, x))


def _between(b: Formula, y: str, low: str, high: str) -> str:
    above, below = (b.greater(big, small) for big, small in ((y, low), (high, y)))
    return b.op("And", above, below)


def _elu(b: Formula, x: str, alpha: float, beta: float) -> str:
    low = b.mul(b.sub(b.exp(_at_most(b, x, 0.0)), 1.0), alpha)
    return b.add(_at_least(b, x, 0.0), low)


def _softplus(b: Formula, x: str, alpha: float, beta: float) -> str:
    rest = b.op("Log", b.add(b.exp(b.neg(b.op("Abs", x))), 1.0))
    return b.add(_at_least(b, x, 0.0), rest)


_FORWARD: dict[str, _Rule] = {
    "sigmoid": lambda b, x, alpha, beta: b.op("Sigmoid", x),
    "tanh": lambda b, x, alpha, beta: b.op("Tanh", x),
    "relu": lambda b, x, alpha, beta: b.op("Relu", x),
    "leakyrelu": lambda b, x, alpha, beta: b.add(
        _at_least(b, x, 0.0), b.mul(_at_most(b, x, 0.0), alpha)
    ),
    "thresholdedrelu": lambda b, x, alpha, beta: b.masked(b.greater(x, alpha), x),
    "hardsigmoid": lambda b, x, alpha, beta: _at_most(
        b, _at_least(b, b.add(b.mul(x, alpha), beta), 0.0), 1.0
    ),
    "elu": _elu,
    "softsign": lambda b, x, alpha, beta: b.div(x, b.add(b.op("Abs", x), 1.0)),
    "softplus": _softplus,
    "affine": lambda b, x, alpha, beta: b.add(b.mul(x, alpha), beta),
    "scaledtanh": lambda b, x, alpha, beta: b.mul(b.op("Tanh", b.mul(x, beta)), alpha),
}


def _hard_sigmoid_slope(b: Formula, y: str, alpha: float, beta: float) -> str:
    inside = _between(b, y, b.scalar(0.0, y), b.scalar(1.0, y))
    return b.mul(b.cast_like(inside, y), alpha)


def _scaled_tanh_slope(b: Formula, y: str, alpha: float, beta: float) -> str:
    # beta (alpha - y^2 / alpha); a factor 0 leaves no trace of the input
    return b.mul(b.sub(alpha, b.mul(b.mul(y, y), 1 / alpha if alpha else 0.0)), beta)


def _softsign_slope(b: Formula, y: str, alpha: float, beta: float) -> str:
    rest = b.sub(1.0, b.op("Abs", y))
    return b.mul(rest, rest)


_SLOPE: dict[str, _Rule] = {
    "sigmoid": lambda b, y, alpha, beta: b.mul(y, b.sub(1.0, y)),
    "tanh": lambda b, y, alpha, beta: b.sub(1.0, b.mul(y, y)),
    "relu": lambda b, y, alpha, beta: b.cast_like(b.greater(y, 0.0), y),
    "leakyrelu": lambda b, y, alpha, beta: b.where(
        b.greater(y, 0.0), b.scalar(1.0, y), b.scalar(alpha, y)
    ),
    "thresholdedrelu": lambda b, y, alpha, beta: b.cast_like(
        b.op("Not", b.equal(y, 0.0), elem_type=dtypes.BOOL), y
    ),
    "hardsigmoid": _hard_sigmoid_slope,
    "elu": lambda b, y, alpha, beta: b.where(b.greater(y, 0.0), 1.0, b.add(y, alpha)),
    "softsign": _softsign_slope,
    "softplus": lambda b, y, alpha, beta: b.sub(1.0, b.exp(b.neg(y))),
    "affine": lambda b, y, alpha, beta: b.op("Expand", b.scalar(alpha, y), b.shape(y)),
    "scaledtanh": _scaled_tanh_slope,
}

#: parameters with their defaults, as onnxruntime has them
_ALPHA = {
    "affine": 0.0,
    "leakyrelu": 0.01,
    "thresholdedrelu": 0.0,
    "scaledtanh": 0.0,
    "hardsigmoid": 0.2,
    "elu": 1.0,
}
_BETA = {"affine": 0.0, "scaledtanh": 0.0, "hardsigmoid": 0.5}

#: those that run up and down again where alpha is negative: an output has two inputs
_FOLDED = ("leakyrelu", "elu")


@dataclass(frozen=True)
class Activation:
    """f(x), or f(clip(x, -bound, bound)) with a bound."""

    name: str
    alpha: float = 0.0
    beta: float = 0.0
    bound: float | None = None

    def __call__(self, b: Formula, x: str) -> str:
        if self.bound is not None:
            x = b.op("Clip", x, b.scalar(-self.bound, x), b.scalar(self.bound, x))
        return self._unbounded(b, x)

    def slope(self, b: Formula, y: str) -> str:
        """f'(x) of y = f(x)."""
        if self.name in _FOLDED and self.alpha < 0:
            raise Refuse(
                f"the output of activation {self.name} with alpha {self.alpha:g} does not tell "
                "its derivative"
            )
        slope = _SLOPE[self.name](b, y, self.alpha, self.beta)
        return slope if self.bound is None else b.masked(self._inside(b, y), slope)

    def _unbounded(self, b: Formula, x: str) -> str:
        return _FORWARD[self.name](b, x, self.alpha, self.beta)

    def _inside(self, b: Formula, y: str) -> str:
        """Where the input was within the bound; a few ulp, for kernels round differently."""
        bound = float(self.bound or 0.0)
        ends = [self._unbounded(b, b.scalar(end, y)) for end in (-bound, bound)]
        slack = 8.0 * float(np.finfo(np.float32).eps)
        low, high = b.op("Min", *ends), b.op("Max", *ends)
        low = b.add(low, b.mul(b.op("Abs", low), slack))
        high = b.sub(high, b.mul(b.op("Abs", high), slack))
        return _between(b, y, low, high)


def activations_of(node: ir.Node, defaults: Sequence[str], directions: int) -> list[Activation]:
    """The activations of a node, direction after direction; Refuse for unknown names."""
    given = node.attr("activations") or tuple(defaults) * directions
    names = [item.decode() if isinstance(item, bytes) else str(item) for item in given]
    if len(names) != len(defaults) * directions:
        raise Refuse(f"{len(names)} activations, {len(defaults) * directions} expected")
    alphas, betas = (iter(node.attr(f"activation_{key}") or ()) for key in ("alpha", "beta"))
    return [_activation(name, alphas, betas) for name in names]


def _activation(name: str, alphas: Iterator[float], betas: Iterator[float]) -> Activation:
    """Each activation takes its parameters from the front of the lists that are left."""
    key = name.lower()
    if key not in _FORWARD:
        raise Refuse(f"the activation {name} is unknown; known are {', '.join(sorted(_FORWARD))}")
    alpha = next(alphas, _ALPHA[key]) if key in _ALPHA else 0.0
    beta = next(betas, _BETA[key]) if key in _BETA else 0.0
    return Activation(key, float(alpha), float(beta))
