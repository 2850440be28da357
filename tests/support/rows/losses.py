"""Rows of the cross-entropy family, every reduction with and without weights and ignore_index."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import numpy as np
from support.lowering import Array, Row, node, normals

_SPATIAL: dict[int, tuple[int, ...]] = {2: (), 3: (3,), 4: (2, 3)}
_CLASSES, _BATCH = 4, 5


def _labels(rank: int, ignored: int | None, everything: bool) -> Array:
    labels = np.random.default_rng(31).integers(0, _CLASSES, (_BATCH, *_SPATIAL[rank]))
    if ignored is not None:
        labels.ravel()[:: 1 if everything else 3] = ignored
    return labels


def cross_entropy(
    logits: Array, labels: Array, weight: Array | None, ignored: int | None, reduction: str
) -> tuple[Array, Array, Array]:
    """Loss, log-probabilities and the gradient for dY = 1, float64; classes on axis 1."""
    x = np.moveaxis(logits.astype(np.float64), 1, -1)
    log_prob = x - x.max(-1, keepdims=True)
    log_prob = log_prob - np.log(np.exp(log_prob).sum(-1, keepdims=True))
    counted = np.ones(labels.shape, bool) if ignored is None else labels != ignored
    safe = np.where(counted, labels, 0)
    each = np.where(counted, 1.0 if weight is None else weight.astype(np.float64)[safe], 0.0)
    loss = -each * np.take_along_axis(log_prob, safe[..., None], -1)[..., 0]
    gradient = (np.exp(log_prob) - np.eye(x.shape[-1])[safe]) * each[..., None]
    total = each.sum() if each.sum() != 0 else 1.0
    if reduction == "mean":
        loss, gradient = loss.sum() / total, gradient / total
    elif reduction == "sum":
        loss = loss.sum()
    return np.asarray(loss), np.moveaxis(log_prob, -1, 1), np.moveaxis(gradient, -1, 1)


def loss_rows(
    name: str,
    op: str,
    reduction: str = "mean",
    weighted: bool = False,
    ignored: int | None = None,
    rank: int = 2,
    kind: type = np.int64,
    everything: bool = False,
    bias: bool = False,
    scale: float = 1.0,
    offset: float = 0.0,
) -> Row:
    """One of the four ops; ``everything``: every label is the ignored one."""
    shape = (_BATCH, _CLASSES, *_SPATIAL[rank])
    logits, extra = normals(32, shape, shape)
    logits = (scale * logits).astype(np.float32)
    if offset:  # on a grid that float32 has there too: what is lost then is the op's own doing
        logits = np.round(logits * 512) / np.float32(512) + np.float32(offset)
    labels = _labels(rank, ignored, everything)
    weight = np.array([0.5, 2.0, 1.0, 0.25], np.float32) if weighted else None
    expected = cross_entropy(logits, labels, weight, ignored, reduction)
    internal, backward = "Internal" in op, op.endswith("Grad")
    feeds: dict[str, Array] = {"logits": logits, "labels": labels.astype(kind)}
    inputs = ["logits", "labels"]
    if backward:
        (dy,) = normals(33, labels.shape if reduction == "none" else ())
        feeds = {"dy": dy, "log_prob": expected[1].astype(np.float32), "labels": feeds["labels"]}
        inputs = ["dy", "log_prob", "labels"]
    if weight is not None:
        feeds["weight"] = weight
    inputs.append("weight" if weight is not None else "_")
    attrs: dict[str, Any] = {"reduction": reduction}
    constants: dict[str, Array] = {}
    if internal:
        inputs.append("ignored" if ignored is not None else "_")
        if ignored is not None:
            constants["ignored"] = np.array(ignored, np.int64)
        if bias:
            feeds["bias"] = extra
            inputs.append("bias")
    elif ignored is not None:
        attrs["ignore_index"] = ignored
    while inputs[-1] == "_":
        inputs.pop()
    wanted: dict[str, Array] = {"loss": expected[0], "log_probs": expected[1]}
    if backward:
        wide = dy.astype(np.float64)
        wide = np.expand_dims(wide, 1) if reduction == "none" else wide
        wanted = {"dlogits": expected[2] * wide + (extra if bias else 0)}
    domain = "com.microsoft" if internal or backward else ""
    nodes = (node(op, " ".join(inputs), " ".join(wanted), domain, **attrs),)
    return Row(name, nodes, feeds, wanted, constants, sized=("weight",))


def _specs() -> dict[str, dict[str, Any]]:
    specs: dict[str, dict[str, Any]] = {"": {}}
    grid = itertools.product(("mean", "sum", "none"), (False, True), (None, 2, -100))
    for reduction, weighted, ignored in grid:
        words = [reduction, "weights" if weighted else "", f"ignore {ignored}" if ignored else ""]
        options = {"reduction": reduction, "weighted": weighted, "ignored": ignored}
        specs[", ".join(filter(None, words))] = options
    specs["rank 3"] = {"rank": 3, "weighted": True}
    specs["rank 4"] = {"rank": 4, "weighted": True, "ignored": 2, "reduction": "sum"}
    specs["rank 4, none"] = {"rank": 4, "ignored": 2, "reduction": "none"}
    specs["int32 labels"] = {"kind": np.int32, "ignored": -1, "weighted": True}
    specs["everything ignored"] = {"ignored": 2, "everything": True}
    specs["large logits"] = {"scale": 60.0}
    specs["logits far from 0"] = {"offset": 8192.0}
    specs["logits far from 0, rank 3"] = {"offset": 8192.0, "rank": 3, "reduction": "none"}
    return specs


TABLE = {
    name: partial(loss_rows, name, op, **options)
    for op in (
        "SoftmaxCrossEntropyLoss",
        "SoftmaxCrossEntropyLossGrad",
        "SoftmaxCrossEntropyLossInternal",
        "SoftmaxCrossEntropyLossInternalGrad",
    )
    for name, options in ((f"{op}: {key}" if key else op, spec) for key, spec in _specs().items())
}
_BIASED = "SoftmaxCrossEntropyLossInternalGrad: bias"
TABLE[_BIASED] = partial(
    loss_rows, _BIASED, "SoftmaxCrossEntropyLossInternalGrad", bias=True, ignored=2, weighted=True
)
