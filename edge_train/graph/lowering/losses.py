"""Cross-entropy over class indices: log-probabilities along axis 1, weights, ignore_index.

With p = exp(log_prob), w_i = weight[label_i] (0 where label_i is ignored): the loss is the sum of
-w_i log_prob[label_i], the gradient (p - onehot) w_i dy; "mean" divides both by the sum of w_i
(by 1 where that is 0). Labels outside [0, classes) are reported, never read (LabelRange).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edge_train import dtypes
from edge_train.graph import ir
from edge_train.graph.lowering.builder import Builder, LabelRange
from edge_train.graph.lowering.registry import lowers

#: ops through which the values of a label input pass unchanged
_VALUE_PRESERVING = ("Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose")


@dataclass(frozen=True)
class Targets:
    """Safe class indices: ``index`` has the logits' rank with size 1 on axis 1."""

    index: str
    weight: str | None  # per label, the shape of ``index``; None means 1 everywhere


@lowers("SoftmaxCrossEntropyLoss", domain="")
def cross_entropy(b: Builder, node: ir.Node) -> tuple[str, str]:
    return _loss(b, node, _ignored_attribute(b, node, node.inputs[1]))


@lowers("SoftmaxCrossEntropyLossInternal")
def cross_entropy_internal(b: Builder, node: ir.Node) -> tuple[str, str]:
    loss, log_prob = _loss(b, node, node.input(3))
    kind = node.attr("output_type", 0) or b.elem_type(node.inputs[0])
    return b.cast(loss, kind), b.cast(log_prob, kind)


@lowers("SoftmaxCrossEntropyLossGrad")
def cross_entropy_grad(b: Builder, node: ir.Node) -> str:
    return _gradient(b, node, _ignored_attribute(b, node, node.inputs[2]))


@lowers("SoftmaxCrossEntropyLossInternalGrad")
def cross_entropy_internal_grad(b: Builder, node: ir.Node) -> str:
    gradient = _gradient(b, node, node.input(4))
    return b.add(gradient, node.input(5)) if node.input(5) else gradient


def _ignored_attribute(b: Builder, node: ir.Node, labels: str) -> str:
    ignored = node.attr("ignore_index")
    return "" if ignored is None else b.scalar(ignored, labels)


@lowers("NegativeLogLikelihoodLossInternal", "NegativeLogLikelihoodLossInternal2")
def negative_log_likelihood(b: Builder, node: ir.Node) -> str:
    return _likelihood(b, node, node.inputs[0], node.input(3))


def _loss(b: Builder, node: ir.Node, ignored: str) -> tuple[str, str]:
    logits = node.inputs[0]
    log_prob = b.op("LogSoftmax", logits, axis=1)
    b.shapes.set(log_prob, b.elem_type(logits), b.dims(logits))
    return _likelihood(b, node, log_prob, ignored), log_prob


def _likelihood(b: Builder, node: ir.Node, log_prob: str, ignored: str) -> str:
    targets = _targets(b, log_prob, node.inputs[1], node.input(2), ignored, check=True)
    return reduced_loss(b, log_prob, targets, node.attr("reduction", "mean"))


def reduced_loss(b: Builder, log_prob: str, targets: Targets, reduction: str) -> str:
    """-w log_prob[label] of every label, or their sum, or their weighted mean."""
    picked = b.op("GatherElements", log_prob, targets.index, axis=1)
    if targets.weight is not None:
        picked = b.mul(picked, targets.weight)
    if reduction == "none":
        return b.neg(b.op("Squeeze", picked, b.ints(1)))
    if reduction == "sum":
        return b.neg(b.op("ReduceSum", picked, keepdims=0))
    if targets.weight is None:
        return b.neg(b.op("ReduceMean", picked, keepdims=0))
    total = b.op("ReduceSum", picked, keepdims=0)
    return b.neg(b.div(total, _weight_sum(b, targets.weight)))


def _gradient(b: Builder, node: ir.Node, ignored: str) -> str:
    dy, log_prob, labels = node.inputs[:3]
    dy = b.cast_like(dy, log_prob)  # the seed of the loss is float32 in every model
    targets = _targets(b, log_prob, labels, node.input(3), ignored, check=False)
    return loss_gradient(b, dy, log_prob, targets, node.attr("reduction", "mean"))


def loss_gradient(b: Builder, dy: str, log_prob: str, targets: Targets, reduction: str) -> str:
    """(p - onehot) times what each label's row is worth."""
    p = b.exp(log_prob)
    at_label = b.sub(b.op("GatherElements", p, targets.index, axis=1), 1.0)
    distance = b.op("ScatterElements", p, targets.index, at_label, axis=1)
    return b.mul(distance, _factor(b, reduction, dy, targets))


def _factor(b: Builder, reduction: str, dy: str, targets: Targets) -> str:
    """What each label's row of (p - onehot) is multiplied by."""
    if reduction == "none":
        dy = b.op("Unsqueeze", dy, b.ints(1))
    elif reduction == "mean" and targets.weight is None:
        count = b.cast_like(b.op("Size", targets.index, elem_type=dtypes.INT64), dy)
        return b.div(dy, count)
    elif reduction == "mean" and targets.weight is not None:
        dy = b.div(dy, _weight_sum(b, targets.weight))
    return dy if targets.weight is None else b.mul(targets.weight, dy)


def _weight_sum(b: Builder, weight: str) -> str:
    total = b.op("ReduceSum", weight, keepdims=0)
    return b.where(b.equal(total, 0.0), 1.0, total)


def _targets(
    b: Builder, log_prob: str, labels: str, weight: str, ignored: str, check: bool
) -> Targets:
    kind = b.elem_type(labels)
    is_ignored = b.equal(labels, b.cast(ignored, kind)) if ignored else ""
    safe = b.where(is_ignored, 0, labels) if ignored else labels
    safe = bounded(b, log_prob, labels, safe, ignored, check)
    per_label = b.op("Gather", weight, safe, axis=0) if weight else ""
    if ignored:
        one = per_label or b.scalar(1.0, log_prob)
        per_label = b.where(is_ignored, b.scalar(0.0, log_prob), one)
    index = _with_class_axis(b, log_prob, labels, safe)
    return Targets(index, _with_class_axis(b, log_prob, labels, per_label) if per_label else None)


def _with_class_axis(b: Builder, log_prob: str, labels: str, values: str) -> str:
    """``values`` (label shape) with a size-1 class axis; another label count fails in Reshape.

    GatherElements would accept fewer labels than rows in silence.
    """
    rows = b.dims(log_prob)
    expected, given = rows[:1] + rows[2:], b.shapes.dims(labels)
    if given == expected and None not in expected:
        return b.op("Unsqueeze", values, b.ints(1))
    parts: list[str | int] = [b.shape_slice(log_prob, 0, 1), 1]
    if len(rows) > 2:
        parts.append(b.shape_slice(log_prob, 2, len(rows)))
    # onnxruntime fuses Shape-Concat-Reshape to [-1, 1], which takes any count; not past a Max
    shape = b.op("Max", b.concat_ints(*parts), b.ints(0))
    return b.op("Reshape", values, shape)


def bounded(b: Builder, log_prob: str, labels: str, safe: str, ignored: str, check: bool) -> str:
    """Class indices that are safe to gather with; the range is checked outside where it can be.

    Labels that a user feeds are checked before the run. Computed labels, or a class count known
    only at run time, are clamped, and what they were is an output checked after the run.
    """
    source = fed_labels(b, labels)
    classes = b.dims(log_prob)[1]
    ignore_value = b.constant_value(ignored) if ignored else None
    if source and isinstance(classes, int) and (not ignored or ignore_value is not None):
        if check:
            number = None if ignore_value is None else int(ignore_value.reshape(()))
            b.labels.append(LabelRange(source, classes, number))
        return safe
    count = b.shape_slice(log_prob, 1, 2)
    if check:
        ends = [b.op(op, safe, keepdims=0) for op in ("ReduceMin", "ReduceMax")]
        ends = [b.reshape(b.cast(end, dtypes.INT64), 1) for end in ends]
        observed = b.op("Concat", *ends, count, axis=0)
        b.labels.append(LabelRange(labels, None, None, observed))
    last = b.cast(b.sub(b.reshape(count, b.const(np.zeros(0, np.int64))), 1), b.elem_type(labels))
    return b.op("Max", b.op("Min", safe, last), b.scalar(0, labels))


def fed_labels(b: Builder, labels: str) -> str:
    """The graph input whose values ``labels`` has, or "" where they are computed."""
    while labels in b.producers:
        node = b.producers[labels]
        if node.op_type not in _VALUE_PRESERVING:
            return ""
        labels = node.inputs[0]
    return labels if any(value.name == labels for value in b.source.inputs) else ""
