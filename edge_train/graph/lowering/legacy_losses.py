"""Cross-entropy as it was before opset 12: classes on the last axis, a weight for each sample.

SparseSoftmaxCrossEntropy takes class indices, SoftmaxCrossEntropy a distribution for each row.
"""

from __future__ import annotations

import numpy as np

from edge_train import dtypes
from edge_train.graph import ir
from edge_train.graph.lowering.builder import Builder
from edge_train.graph.lowering.losses import Targets, bounded, loss_gradient, reduced_loss
from edge_train.graph.lowering.registry import lowers


@lowers("SparseSoftmaxCrossEntropy", domain="")
def sparse_cross_entropy(b: Builder, node: ir.Node) -> tuple[str, str]:
    """Loss and log-probabilities; the mean is over the sum of the weights."""
    logits, labels = node.inputs[:2]
    rows = b.op("LogSoftmax", _as_rows(b, logits), axis=1)
    targets = _targets(b, rows, labels, node.input(2), check=True)
    reduction = node.attr("reduction", "mean")
    loss = reduced_loss(b, rows, targets, reduction)
    if reduction == "none":
        loss = b.reshape_like(loss, labels)
    return loss, b.reshape_like(rows, logits)


@lowers("SparseSoftmaxCrossEntropyGrad", domain="")
def sparse_cross_entropy_grad(b: Builder, node: ir.Node) -> str:
    dy, log_prob, labels = node.inputs[:3]
    rows = _as_rows(b, log_prob)
    targets = _targets(b, rows, labels, node.input(3), check=False)
    reduction = node.attr("reduction", "mean")
    dy = b.cast_like(dy, log_prob)
    if reduction == "none":
        dy = b.reshape(dy, -1)
    return b.reshape_like(loss_gradient(b, dy, rows, targets, reduction), log_prob)


def _as_rows(b: Builder, x: str) -> str:
    """(..., classes) as (rows, classes)."""
    rank = b.rank(x)
    return x if rank == 2 else b.reshape(x, -1, b.shape_slice(x, rank - 1, rank))


def _targets(b: Builder, rows: str, labels: str, weight: str, check: bool) -> Targets:
    safe = b.cast(bounded(b, rows, labels, labels, "", check), dtypes.INT64)
    # onnxruntime fuses Shape-Concat-Reshape to [-1, 1], which takes any count; not past a Max
    shape = b.op("Max", b.concat_ints(b.shape_slice(rows, 0, 1), 1), b.ints(0))
    index = b.op("Reshape", safe, shape)
    return Targets(index, b.op("Reshape", weight, shape) if weight else None)


@lowers("SoftmaxCrossEntropy")
def soft_cross_entropy(b: Builder, node: ir.Node) -> tuple[str, str]:
    """-label log_prob summed over classes and rows, or its mean over rows."""
    logits, label = node.inputs
    log_prob = b.op("LogSoftmax", logits, axis=-1)
    parts = b.neg(b.mul(log_prob, label))
    reduction = node.attr("reduction", "mean")
    if reduction == "none":
        return b.sum(parts, [-1], keepdims=False), log_prob
    total = b.op("ReduceSum", parts, keepdims=0)
    if reduction == "mean":
        total = b.div(total, _rows(b, logits))
    return total, log_prob


@lowers("SoftmaxCrossEntropyGrad")
def soft_cross_entropy_grad(b: Builder, node: ir.Node) -> str:
    """(p sum(label) - label) dy; a label row that does not sum to 1 is no special case."""
    dy, log_prob, label = node.inputs
    dy = b.cast_like(dy, log_prob)
    reduction = node.attr("reduction", "mean")
    if reduction == "none":
        dy = b.op("Unsqueeze", dy, b.ints(-1))
    elif reduction == "mean":
        dy = b.div(dy, _rows(b, log_prob))
    distance = b.sub(b.mul(b.exp(log_prob), b.sum(label, [-1])), label)
    return b.mul(distance, dy)


def _rows(b: Builder, x: str) -> str:
    """How many rows (..., classes) has, as a number in its own dtype."""
    rank = b.rank(x)
    if rank < 2:
        return b.scalar(1, x)
    count = b.op("ReduceProd", b.shape_slice(x, 0, rank - 1), keepdims=0)
    return b.cast_like(b.reshape(count, b.const(np.zeros(0, np.int64))), x)
