"""Shape rules of the forward ops of domain edge_train (native/kernels.c)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edge_train import dtypes
from edge_train.graph import ir
from edge_train.graph.shape_rules import RULES, Facts, like, rule

if TYPE_CHECKING:
    from edge_train.graph.shapes import Shapes


@rule("PointwiseConv", "DepthwiseConv")
def _conv(s: Shapes, node: ir.Node) -> Facts:
    return RULES["Conv"](s, node)


@rule("BatchNorm")
def _batch_norm(s: Shapes, node: ir.Node) -> Facts:
    """The output, then statistics: a number for each channel."""
    channels = like(s, node.input(1))
    return [like(s, node.input(0)), channels, channels, channels, channels]


@rule("CrossEntropy")
def _cross_entropy(s: Shapes, node: ir.Node) -> Facts:
    """The loss and the logarithms of the probabilities."""
    return [(dtypes.FLOAT, None), like(s, node.input(0))]


@rule("CrossEntropyWithGrad")
def _cross_entropy_with_grad(s: Shapes, node: ir.Node) -> Facts:
    """The loss and the gradient of the logits."""
    return [(dtypes.FLOAT, None), like(s, node.input(1))]


@rule("DrawnDropout")
def _drawn_dropout(s: Shapes, node: ir.Node) -> Facts:
    """The output, and the seed of its mask."""
    return [like(s, node.input(0)), (dtypes.INT64, (1,))]


@rule("SeededDropout")
def _seeded_dropout(s: Shapes, node: ir.Node) -> Facts:
    return [like(s, node.input(0))]
