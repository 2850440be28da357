"""Losses over class indices: cross-entropy of scores and of log-probabilities."""

from __future__ import annotations

import numpy as np

from edge_train import dtypes
from edge_train.graph import ir
from edge_train.graph.gradients.builder import Gradients
from edge_train.graph.gradients.registry import gradient


@gradient("SoftmaxCrossEntropyLoss", cut=(1, 2))
def cross_entropy(g: Gradients, node: ir.Node, dy: str, d_log_prob: str = "") -> str:
    """The training op for the loss; d - softmax sum(d) where the log-probabilities are read too."""
    log_prob = g.extra_output(node, 1, "log_prob", g.elem_type(node.inputs[0]))
    dx = ""
    if dy:
        attributes = {name: node.attr(name) for name in ("reduction", "ignore_index")}
        inputs = (dy, log_prob, *node.inputs[1:])
        dx = g.op("SoftmaxCrossEntropyLossGrad", *inputs, domain=ir.MICROSOFT, **attributes)
    if d_log_prob:
        spread = g.mul(g.exp(log_prob), g.sum(d_log_prob, [1]))
        through = g.sub(d_log_prob, spread)
        dx = g.add(dx, through) if dx else through
    return dx


@gradient("NegativeLogLikelihoodLoss", cut=(1, 2))
def negative_log_likelihood(g: Gradients, node: ir.Node, dy: str) -> str:
    """-dy w at the label's place, over the sum of the weights used for a mean."""
    x, labels = node.inputs[:2]
    used = _used(g, node, x, labels)
    reduction = node.attr("reduction", "mean")
    if reduction == "none":
        dy = g.op("Unsqueeze", dy, g.ints(1))
    elif reduction == "mean":
        dy = g.div(dy, g.sum(used, range(g.rank(x)), keepdims=False))
    return g.neg(g.mul(used, dy))


def _used(g: Gradients, node: ir.Node, x: str, labels: str) -> str:
    """(N, C, d...): the weight of the class where the label says so and counts, else 0."""
    ones = [1] * (g.rank(x) - 2)
    count = g.op("Squeeze", g.shape_slice(x, 1, 2), g.ints(0))
    zero, one = (g.const(np.array(value, np.int64)) for value in (0, 1))
    classes = g.reshape(g.op("Range", zero, count, one), -1, *ones)
    column = g.op("Unsqueeze", g.cast(labels, dtypes.INT64), g.ints(1))
    hit = g.cast_like(g.equal(column, classes), x)
    ignored = node.attr("ignore_index")
    if ignored is not None:
        hit = g.masked(g.op("Not", g.equal(column, ignored)), hit)
    if node.input(2):
        hit = g.mul(hit, g.reshape(node.input(2), -1, *ones))
    return hit
