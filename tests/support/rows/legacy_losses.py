"""Rows of the cross-entropies before opset 12 and of the internal likelihood losses."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from support.lowering import WRONG_IN_REFERENCE, Array, Row, node, normals
from support.rows.losses import cross_entropy

_CLASSES = 4
_LEADS: dict[int, tuple[int, ...]] = {2: (5,), 3: (2, 3), 4: (2, 1, 3)}


def _reduced(each: Array, weights: Array, reduction: str) -> Array:
    if reduction == "none":
        return each
    return np.asarray(each.sum() / (weights.sum() if reduction == "mean" else 1.0))


def _scale(weights: Array, dy: Array, reduction: str) -> Array:
    wide = dy.astype(np.float64)
    total = weights * wide / (weights.sum() if reduction == "mean" else 1.0)
    return np.asarray(total)[..., None]


def _log_softmax(x: Array) -> Array:
    wide = x.astype(np.float64)
    wide = wide - wide.max(-1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(-1, keepdims=True))


def legacy_row(
    name: str,
    op: str,
    reduction: str | None = None,
    weighted: bool = False,
    rank: int = 2,
    kind: type = np.int64,
) -> Row:
    """SparseSoftmaxCrossEntropy(Grad) and SoftmaxCrossEntropy(Grad); classes last."""
    lead, how = _LEADS[rank], reduction or "mean"
    (logits,) = normals(101, (*lead, _CLASSES))
    rng = np.random.default_rng(101)
    log_prob = _log_softmax(logits)
    if op.startswith("Sparse"):
        labels: Array = rng.integers(0, _CLASSES, lead).astype(kind)
        onehot = np.eye(_CLASSES)[labels]
    else:
        labels = rng.dirichlet(np.ones(_CLASSES), lead).astype(np.float32)
        onehot = labels.astype(np.float64)
    weight = rng.random(lead).astype(np.float32) + np.float32(0.5)
    weights = weight.astype(np.float64) if weighted else np.ones(lead)
    feeds: dict[str, Array] = {"logits": logits, "labels": labels}
    expected: dict[str, Array] = {
        "loss": _reduced(-(onehot * log_prob).sum(-1) * weights, weights, how),
        "log_prob": log_prob,
    }
    if op.endswith("Grad"):
        (dy,) = normals(102, lead if how == "none" else ())
        rounded = log_prob.astype(np.float32)
        feeds = {"dy": dy, "rounded": rounded, "labels": labels}
        p = np.exp(rounded.astype(np.float64)) * onehot.sum(-1, keepdims=True)
        expected = {"dlogits": (p - onehot) * _scale(weights, dy, how)}
    if weighted:
        feeds["weight"] = weight
    sparse = op.startswith("Sparse")
    domain = "" if sparse else "com.microsoft"
    nodes = (node(op, " ".join(feeds), " ".join(expected), domain, reduction=reduction),)
    # there "none" is a scalar too, and int32 labels are read as int64
    wrong = how == "none" or (sparse and kind is not np.int64)
    return Row(name, nodes, feeds, expected, reference=WRONG_IN_REFERENCE if wrong else "")


def likelihood_row(
    name: str, op: str, reduction: str = "mean", weighted: bool = False, ignored: int | None = None,
    shape: tuple[int, ...] = (5, 4),
) -> Row:  # fmt: skip
    """NegativeLogLikelihoodLossInternal(2) of log-probabilities."""
    (logits,) = normals(103, shape)
    labels = np.random.default_rng(103).integers(0, shape[1], (shape[0], *shape[2:]))
    if ignored is not None:
        labels.ravel()[::3] = ignored
    log_prob = np.moveaxis(_log_softmax(np.moveaxis(logits, 1, -1)), -1, 1).astype(np.float32)
    weight = np.array([0.5, 2.0, 1.0, 0.25], np.float32) if weighted else None
    loss = cross_entropy(log_prob, labels, weight, ignored, reduction)[0]
    feeds: dict[str, Array] = {"log_prob": log_prob, "labels": labels}
    if weight is not None:
        feeds["weight"] = weight
    constants: dict[str, Any] = {}
    inputs = ["log_prob", "labels", "weight" if weighted else "_"]
    if ignored is not None:
        constants["ignored"] = np.array(ignored, np.int64)
        inputs.append("ignored")
    while inputs[-1] == "_":
        inputs.pop()
    nodes = (node(op, " ".join(inputs), "loss", reduction=reduction),)
    broken = "its function body is for opset 12" if op.endswith("Internal") else ""
    expected = {"loss": loss}
    return Row(name, nodes, feeds, expected, constants, sized=("weight",), reference=broken)


_SPECS: dict[str, dict[str, Any]] = {
    "": {},
    "sum": {"reduction": "sum"},
    "none": {"reduction": "none"},
    "rank 3": {"rank": 3},
    "rank 4, sum": {"rank": 4, "reduction": "sum"},
}
_WEIGHTED: dict[str, dict[str, Any]] = {
    "weights": {"weighted": True},
    "weights, sum": {"weighted": True, "reduction": "sum"},
    "weights, none": {"weighted": True, "reduction": "none", "rank": 3},
    "int32 labels": {"kind": np.int32, "weighted": True, "rank": 3},
}
_LIKELIHOOD: dict[str, dict[str, Any]] = {
    "": {},
    "weights, ignored": {"weighted": True, "ignored": -1},
    "sum": {"reduction": "sum", "ignored": 2},
    "none, rank 4": {"reduction": "none", "shape": (2, 4, 3, 2), "weighted": True},
}


def _named(op: str, specs: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {f"{op}: {key}" if key else op: spec for key, spec in specs.items()}


TABLE = {
    name: partial(legacy_row, name, op, **options)
    for op in (
        "SparseSoftmaxCrossEntropy",
        "SparseSoftmaxCrossEntropyGrad",
        "SoftmaxCrossEntropy",
        "SoftmaxCrossEntropyGrad",
    )
    for specs in (_SPECS, _WEIGHTED if op.startswith("Sparse") else {})
    for name, options in _named(op, specs).items()
}
TABLE.update(
    {
        name: partial(likelihood_row, name, op, **options)
        for op in ("NegativeLogLikelihoodLossInternal", "NegativeLogLikelihoodLossInternal2")
        for name, options in _named(op, _LIKELIHOOD).items()
    }
)
