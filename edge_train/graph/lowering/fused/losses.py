"""Softmax cross-entropy in one kernel: the loss, and its gradient too where both belong together.

That is where only the gradient's node reads the log-probabilities and the gradient that arrives at
the loss is a constant: then one pass over the logits makes both, and no log-probabilities are kept.
"""

from __future__ import annotations

from typing import Any

from edge_train import dtypes
from edge_train.graph import ir
from edge_train.graph.lowering.builder import Builder, LabelRange
from edge_train.graph.lowering.losses import fed_labels
from edge_train.graph.lowering.registry import fuses
from edge_train.graph.passes import outer_reads

_REDUCTIONS = {"none": 0, "sum": 1, "mean": 2}
_GRADIENTS = ("SoftmaxCrossEntropyLossGrad", "SoftmaxCrossEntropyLossInternalGrad")


@fuses("SoftmaxCrossEntropyLoss", domain="")
def cross_entropy(b: Builder, node: ir.Node) -> tuple[str, ...] | None:
    return _loss(b, node, node.attr("ignore_index"))


@fuses("SoftmaxCrossEntropyLossInternal")
def cross_entropy_internal(b: Builder, node: ir.Node) -> tuple[str, ...] | None:
    if node.attr("output_type", 0) not in (0, dtypes.FLOAT):
        return None
    return _loss(b, node, _ignored_input(b, node, 3))


@fuses("SoftmaxCrossEntropyLossGrad")
def cross_entropy_grad(b: Builder, node: ir.Node) -> tuple[str, ...] | None:
    return _gradient(b, node, node.attr("ignore_index"))


@fuses("SoftmaxCrossEntropyLossInternalGrad")
def cross_entropy_internal_grad(b: Builder, node: ir.Node) -> tuple[str, ...] | None:
    made = _gradient(b, node, _ignored_input(b, node, 4))
    if made is None or not node.input(5):
        return made
    return (b.add(made[0], node.input(5)),)


def _ignored_input(b: Builder, node: ir.Node, index: int) -> Any:
    """The label that is left out: a number, None for none, "" where only the run tells it."""
    if not node.input(index):
        return None
    value = b.constant_value(node.input(index))
    return "" if value is None else int(value.reshape(()))


def _attributes(
    b: Builder, node: ir.Node, logits: str, labels: str, ignored: Any
) -> dict[str, Any] | None:
    """The kernel's attributes; None where labels are not fed, or the classes not known."""
    dims = b.shapes.dims(logits)
    known = dims is not None and len(dims) > 1 and isinstance(dims[1], int)
    if not known or ignored == "" or not fed_labels(b, labels):
        return None
    reduction = _REDUCTIONS[node.attr("reduction", "mean")]
    if ignored is None:
        return {"reduction": reduction}
    return {"reduction": reduction, "has_ignored": 1, "ignored": ignored}


def _loss(b: Builder, node: ir.Node, ignored: Any) -> tuple[str, ...] | None:
    logits, labels, weight = (*node.inputs, "", "")[:3]
    attributes = _attributes(b, node, logits, labels, ignored)
    if attributes is None:
        return None
    classes = b.dims(logits)[1]
    b.labels.append(LabelRange(fed_labels(b, labels), int(classes or 0), ignored))
    inputs = [logits, labels, *filter(None, [weight])]
    gradient = _own_gradient(b, b.node, ignored)
    if gradient is not None and attributes["reduction"]:
        seed = gradient.inputs[0]
        likes = ("", logits)
        loss, dx = b.native("CrossEntropyWithGrad", seed, *inputs, like=likes, **attributes)
        b.shapes.set(loss, dtypes.FLOAT, ())
        b.saved[gradient.output(0)] = dx
        return loss, ""
    wanted = [True, b.is_read(b.node.output(1))]
    loss, log_prob = b.native_some("CrossEntropy", inputs, ("", logits), wanted, **attributes)
    if attributes["reduction"]:
        b.shapes.set(loss, dtypes.FLOAT, ())
    return loss, log_prob


def _own_gradient(b: Builder, loss: ir.Node, ignored: Any) -> ir.Node | None:
    """The one reader of the log-probabilities, where it is this loss's gradient by a constant."""
    log_prob = loss.output(1)
    readers = [n for n in b.source.nodes if log_prob in outer_reads(n)] if log_prob else []
    if len(readers) != 1 or any(value.name == log_prob for value in b.source.outputs):
        return None
    (node,) = readers
    if node.op_type not in _GRADIENTS or node.input(1) != log_prob:
        return None
    internal = node.op_type == _GRADIENTS[1]
    left_out = _ignored_input(b, node, 4) if internal else node.attr("ignore_index")
    seed = b.constant_value(node.inputs[0])
    same = (
        node.inputs[2] == loss.inputs[1]
        and node.input(3) == loss.input(2)
        and left_out == ignored
        and node.attr("reduction", "mean") == loss.attr("reduction", "mean")
    )
    constant = seed is not None and seed.size == 1 and seed.dtype == dtypes.NUMPY[dtypes.FLOAT]
    return node if same and constant else None


def _gradient(b: Builder, node: ir.Node, ignored: Any) -> tuple[str, ...] | None:
    made = b.saved.get(b.node.output(0))
    if made is not None:
        return (made,)
    dy, log_prob, labels, weight = (*node.inputs, "", "")[:4]
    attributes = _attributes(b, node, log_prob, labels, ignored)
    if attributes is None:
        return None
    inputs = (dy, log_prob, labels, *filter(None, [weight]))
    return b.native("CrossEntropyGrad", *inputs, like=(log_prob,), **attributes)
