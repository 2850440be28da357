"""Rows of LSTM and GRU, forward and gradient, in every direction and with every attribute."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from support.lowering import WRONG_IN_REFERENCE, Array, Arrays, Row, node, normals
from support.recurrent import DIRECTIONS, HIDDEN, gradients, gru, lstm

_STEPS, _BATCH, _INPUT = 4, 3, 2
_ONLY_HERE = "forward direction, full sequences and the default attributes only"

#: inputs of each op in order
_LSTM = "x w r b lens h0 c0 p"
_LSTM_GRAD = "x w r lens h0 c0 h c iofc dh dh_last dc_last"
_GRU = "x w r b lens h0"
_GRU_GRAD = "x w r b lens h0 h zrh dh dh_last"


def inputs(
    gates: int, omit: str = "", lens: tuple[int, ...] = (), **attrs: Any
) -> dict[str, Array]:
    """Random inputs of a layer by name; p only for a forward op that asks (``omit`` without p)."""
    many, size = len(DIRECTIONS[attrs.get("direction", "forward")]), gates * HIDDEN
    shapes: dict[str, tuple[int, ...]] = {
        "x": (_STEPS, _BATCH, _INPUT),
        "w": (many, size, _INPUT),
        "r": (many, size, HIDDEN),
        "b": (many, 2 * size),
        "h0": (many, _BATCH, HIDDEN),
        "c0": (many, _BATCH, HIDDEN),
        "p": (many, 3 * HIDDEN),
        "dh": (_STEPS, many, _BATCH, HIDDEN),
        "dh_last": (many, _BATCH, HIDDEN),
        "dc_last": (many, _BATCH, HIDDEN),
    }
    values = dict(zip(shapes, normals(71, *shapes.values()), strict=True))
    if lens:
        values["lens"] = np.array(lens, np.int32)
    if gates == 3:
        omit += " c0 p dc_last"
    return {name: value for name, value in values.items() if name not in omit.split()}


def _named(order: str, feeds: Arrays) -> str:
    names = [name if name in feeds else "_" for name in order.split()]
    while names[-1] == "_":
        names.pop()
    return " ".join(names)


def _row(name: str, nodes: list[Any], pool: Arrays, expected: Arrays, reference: str) -> Row:
    made = {output for item in nodes for output in item.outputs}
    read = {used for item in nodes for used in item.inputs} - made
    feeds = {key: value for key, value in pool.items() if key in read}
    alone = reference if "lens" not in feeds else _ONLY_HERE
    return Row(name, tuple(nodes), feeds, expected, sized=("w", "r"), reference=alone)


def lstm_row(
    name: str, parts: str, omit: str = "p", lens: tuple[int, ...] = (), **attrs: Any
) -> Row:
    """LSTMTraining, LSTMGrad on given states, or ``parts`` "both" where they share peepholes."""
    reference = _ONLY_HERE if attrs else ""
    feeds = inputs(4, omit, lens, **attrs)
    attrs = {"hidden_size": HIDDEN, **attrs}
    layer = {key: feeds[key] for key in _LSTM.split() if key in feeds}
    made = lstm(layer, **attrs)
    forward = node("LSTMTraining", _named(_LSTM, layer), "h h_last c_last c iofc", **attrs)
    if parts == "forward":
        return _row(name, [forward], layer, made, reference)
    weights = {key[1:]: feeds[key] for key in ("dh", "dh_last", "dc_last") if key in feeds}
    order = ("x", "w", "r", "b", "h0", "c0", "p")
    wanted = [key for key in order if key in layer]
    slopes = gradients(lstm, layer, weights, wanted, **attrs)
    outputs = " ".join(f"g_{key}" if key in slopes else "_" for key in order)
    states = {key: made[key].astype(np.float32) for key in ("h", "c", "iofc")}
    pool = {**feeds, **states}
    grad = node("LSTMGrad", _named(_LSTM_GRAD, pool), outputs.removesuffix(" _"), **attrs)
    expected = {f"g_{key}": value for key, value in slopes.items()}
    if parts == "backward":
        return _row(name, [grad], pool, expected, reference)
    return _row(name, [forward, grad], feeds, {**made, **expected}, reference or WRONG_IN_REFERENCE)


def gru_row(name: str, parts: str, omit: str = "", lens: tuple[int, ...] = (), **attrs: Any) -> Row:
    """GRUTraining, or GRUGrad on given states."""
    reference = "" if set(attrs) <= {"linear_before_reset"} else _ONLY_HERE
    feeds = inputs(3, omit, lens, **attrs)
    attrs = {"hidden_size": HIDDEN, **attrs}
    layer = {key: feeds[key] for key in _GRU.split() if key in feeds}
    made = gru(layer, **attrs)
    if parts == "forward":
        forward = node("GRUTraining", _named(_GRU, layer), "h h_last zrh", **attrs)
        return _row(name, [forward], layer, made, reference)
    weights = {key[1:]: feeds[key] for key in ("dh", "dh_last") if key in feeds}
    order = ("x", "w", "r", "b", "h0")
    wanted = [key for key in order if key in layer]
    slopes = gradients(gru, layer, weights, wanted, **attrs)
    outputs = " ".join(f"g_{key}" if key in slopes else "_" for key in order)
    pool = {**feeds, **{key: made[key].astype(np.float32) for key in ("h", "zrh")}}
    grad = node("GRUGrad", _named(_GRU_GRAD, pool), outputs.removesuffix(" _"), **attrs)
    expected = {f"g_{key}": value for key, value in slopes.items()}
    return _row(name, [grad], pool, expected, reference)


_BOTH = {"direction": "bidirectional"}

#: what every layer is tried with
COMMON: dict[str, dict[str, Any]] = {
    "": {},
    ": reverse": {"direction": "reverse"},
    ": bidirectional": _BOTH,
    ": lengths": {"lens": (2, 4, 1)},
    ": lengths, none": {"lens": (0, 4, 1)},
    ": reverse, lengths": {"direction": "reverse", "lens": (2, 4, 0)},
    ": bidirectional, lengths": {**_BOTH, "lens": (3, 1, 4)},
    ": clip": {"clip": 0.9},
}
LSTM: dict[str, dict[str, Any]] = {
    **COMMON,
    ": no initial states": {"omit": "p h0 c0"},
    ": no bias": {"omit": "p b"},
    ": bidirectional, bare": {**_BOTH, "omit": "p b h0 c0 dh_last dc_last"},
    ": only the last h": {"omit": "p dh dc_last"},
    ": only the last c": {"omit": "p dh dh_last", "lens": (2, 4, 1)},
    ": input_forget": {"input_forget": 1},
    ": relu": {"activations": ["Sigmoid", "Relu", "Softsign"]},
    ": hard sigmoid": {
        "activations": ["HardSigmoid", "LeakyRelu", "Elu"],
        "activation_alpha": [0.3, 0.1],
        "activation_beta": [0.4],
    },
    ": hard sigmoid, clip": {"activations": ["HardSigmoid", "Softsign", "Relu"], "clip": 1.0},
    ": affine": {
        "activations": ["Sigmoid", "Affine", "ScaledTanh"],
        "activation_alpha": [0.5, 1.5],
        "activation_beta": [0.1, 0.7],
        "clip": 0.8,
    },
    ": affine gates": {"activations": ["Affine"] * 3, "activation_alpha": [0.5, 0.4, 0.3]},
    ": one activation a direction": {
        **_BOTH,
        "activations": ["Sigmoid", "Softplus", "Tanh", "Sigmoid", "ThresholdedRelu", "Tanh"],
        "activation_alpha": [0.3],
    },
}
PEEPHOLES: dict[str, dict[str, Any]] = {
    ": peepholes": {},
    ": peepholes, clip": {"clip": 0.9},
    ": peepholes, input_forget": {"input_forget": 1},
    ": peepholes, bidirectional, lengths": {**_BOTH, "lens": (3, 0, 4)},
    ": peepholes, bare": {"omit": "b h0 c0 dh_last dc_last"},
}
GRU: dict[str, dict[str, Any]] = {
    **{f"{name}{', linear' if name else ': linear'}": {**given, "linear_before_reset": 1}
       for name, given in COMMON.items()},
    **COMMON,
    ": no initial state": {"omit": "h0"},
    ": no bias": {"omit": "b"},
    ": no bias, linear": {"omit": "b", "linear_before_reset": 1},
    ": only the last": {"omit": "dh"},
    ": only the last, linear": {"omit": "dh", "linear_before_reset": 1, "lens": (2, 4, 1)},
    ": bare": {"omit": "b h0 dh_last"},
    ": hard sigmoid": {"activations": ["HardSigmoid", "Softsign"], "clip": 1.2},
    ": relu, linear": {"activations": ["Sigmoid", "Relu"], "linear_before_reset": 1},
    ": affine": {"activations": ["Affine"] * 2, "activation_alpha": [0.5, 0.4]},
}  # fmt: skip

_ROWS: dict[str, Callable[[str], Row]] = {
    **{f"LSTMTraining{k}": partial(lstm_row, parts="forward", **v) for k, v in LSTM.items()},
    **{f"LSTMGrad{k}": partial(lstm_row, parts="backward", **v) for k, v in LSTM.items()},
    **{
        f"LSTMGrad{k}": partial(lstm_row, parts="both", **{"omit": "", **v})
        for k, v in PEEPHOLES.items()
    },
    **{f"GRUTraining{k}": partial(gru_row, parts="forward", **v) for k, v in GRU.items()},
    **{f"GRUGrad{k}": partial(gru_row, parts="backward", **v) for k, v in GRU.items()},
}

TABLE = {name: partial(build, name) for name, build in _ROWS.items()}
