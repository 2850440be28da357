"""Gradient rows of losses."""

from __future__ import annotations

from typing import Any

import numpy as np
from support.gradients import Row, normals, single

X, DEEP = normals(4, (3, 4), (2, 4, 3, 2))
LABELS = np.array([0, 3, 1], np.int64)
MARKED = np.array([0, -100, 1], np.int64)
DEEP_LABELS = np.random.default_rng(0).integers(0, 4, (2, 3, 2))
WEIGHTS = np.array([1, 2, 0.5, 3], np.float32)


def loss(name: str, x: np.ndarray, labels: np.ndarray, makes: str = "y", **attrs: Any) -> Row:
    weights = attrs.pop("w", None)
    constants = {} if weights is None else {"w": weights}
    inputs = {"x": x, "labels": labels}
    outputs = tuple(makes.replace("_ ", "").split())
    return single(name, inputs, makes=makes, attrs=attrs, constants=constants, outputs=outputs)


def forms(op: str) -> list[Row]:
    return [
        loss(op, X, LABELS),
        loss(f"{op}:sum", X, LABELS, reduction="sum"),
        loss(f"{op}:none", X, LABELS, reduction="none"),
        loss(f"{op}:weights", X, LABELS, w=WEIGHTS),
        loss(f"{op}:int32", X, LABELS.astype(np.int32)),
        loss(f"{op}:ignored", X, MARKED, ignore_index=-100),
        loss(f"{op}:ignored weights", X, MARKED, ignore_index=-100, w=WEIGHTS),
        loss(f"{op}:deep", DEEP, DEEP_LABELS, w=WEIGHTS),
        loss(f"{op}:deep none", DEEP, DEEP_LABELS, ignore_index=2, w=WEIGHTS, reduction="none"),
    ]


SCE = "SoftmaxCrossEntropyLoss"
ROWS: list[Row] = [
    *forms(SCE),
    *forms("NegativeLogLikelihoodLoss"),
    loss(f"{SCE}:both outputs", X, LABELS, "y p", w=WEIGHTS),
    loss(f"{SCE}:both deep", DEEP, DEEP_LABELS, "y p", reduction="none"),
    loss(f"{SCE}:log_prob alone", X, LABELS, "_ p"),
]
