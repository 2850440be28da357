"""Gradient rows of recurrent layers, against slopes of their definition in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
from support.gradients import Array, Row, normals, single
from support.recurrent import DIRECTIONS, HIDDEN, gradients, gru, lstm, rnn

STEPS, BATCH, INPUT = 4, 3, 2
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
LAYERS = {"RNN": rnn, "GRU": gru, "LSTM": lstm}
LENGTHS = np.array([4, 1, 3], np.int32)


def layer(name: str, reads: str = "x w r b", makes: str = "h", **attrs: Any) -> Row:
    """A layer that reads some of its inputs and whose loss sees some of its outputs."""
    op = name.partition(":")[0]
    pool = arrays(GATES[op], len(DIRECTIONS[attrs.get("direction", "forward")]))
    inputs = {key: pool[key] for key in reads.replace("_", "").split()}
    outputs = tuple(makes.replace("_ ", "").split())

    def expected(values: dict[str, Array], r: dict[str, Array]) -> dict[str, Array]:
        floats = [key for key, value in values.items() if value.dtype.kind == "f"]
        return gradients(LAYERS[op], values, r, floats, **attrs)

    every = {"hidden_size": HIDDEN, **attrs}
    return single(
        name, inputs, reads, makes, every, outputs=outputs, expected=expected, sized=("w", "r")
    )


def arrays(gates: int, many: int) -> dict[str, Array]:
    """Every input of a layer."""
    shapes: dict[str, tuple[int, ...]] = {
        "x": (STEPS, BATCH, INPUT),
        "w": (many, gates * HIDDEN, INPUT),
        "r": (many, gates * HIDDEN, HIDDEN),
        "b": (many, 2 * gates * HIDDEN),
        "h0": (many, BATCH, HIDDEN),
        "c0": (many, BATCH, HIDDEN),
        "p": (many, 3 * HIDDEN),
    }
    made = dict(zip(shapes, normals(21, *shapes.values()), strict=True))
    return {**made, "lens": LENGTHS}


def common(op: str) -> list[Row]:
    """What all three have in common."""
    return [
        layer(op),
        layer(f"{op}:no bias", "x w r", "_ h_last"),
        layer(f"{op}:first state", "x w r b _ h0" + (" c0" if op == "LSTM" else ""), "h h_last"),
        layer(f"{op}:lengths", "x w r b lens", "h h_last"),
        layer(f"{op}:reverse", direction="reverse"),
        layer(f"{op}:reverse, lengths", "x w r _ lens", "h h_last", direction="reverse"),
        layer(f"{op}:both", "x w r b lens", "h h_last", direction="bidirectional"),
        layer(f"{op}:clip", clip=0.8),
    ]


ROWS: list[Row] = [
    *(row for op in GATES for row in common(op)),
    layer("LSTM:last cell", makes="_ _ c_last"),
    layer("LSTM:three outputs", makes="h h_last c_last"),
    layer("LSTM:cell without state", "x w r b _ _ c0"),
    layer("LSTM:peepholes", "x w r b _ h0 c0 p"),
    layer("LSTM:peepholes alone", "x w r _ _ _ _ p", "_ h_last"),
    layer("LSTM:input_forget", input_forget=1),
    layer("LSTM:activations", activations=["HardSigmoid", "Relu", "Softsign"]),
    layer("GRU:linear_before_reset", "x w r b _ h0", linear_before_reset=1),
    layer(
        "GRU:activations",
        activations=["HardSigmoid", "ScaledTanh"],
        activation_alpha=[0.3, 1.5],
        activation_beta=[0.4, 0.7],
    ),
    layer("RNN:relu", activations=["Relu"]),
    layer("RNN:affine", activations=["Affine"], activation_alpha=[0.6], activation_beta=[0.1]),
    layer("LSTM:affine", activations=["Affine"] * 3, activation_alpha=[0.6, 0.5, 0.4]),
    layer("GRU:affine", activations=["Affine"] * 2, activation_alpha=[0.6, 0.3]),
    layer("RNN:two activations", direction="bidirectional", activations=["Sigmoid", "Elu"]),
]
