"""How ONNX ops changed from opset 7 to 12: attributes that became inputs, ops that were renamed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from edge_train import dtypes
from edge_train.graph import ir
from edge_train.graph.opset_rules import Unraisable, older_resize, rule, without

if TYPE_CHECKING:
    from edge_train.graph.opset import Scope


def _scalar(s: Scope, node: ir.Node, value: float) -> ir.Node:
    """A scalar in the dtype of the node's first input."""
    kind = s.shapes.elem_type(node.input(0)) or dtypes.FLOAT
    return s.constant(np.array(value, dtypes.NUMPY[kind]), node)


@rule(10, "Slice")
def _slice(s: Scope, node: ir.Node) -> list[ir.Node]:
    starts, ends = node.attr("starts"), node.attr("ends")
    axes = node.attr("axes", tuple(range(len(starts))))
    inputs = (node.input(0), s.const(starts), s.const(ends), s.const(axes))
    return [replace(node, inputs=inputs, attributes=without(node, "starts", "ends", "axes"))]


@rule(10, "TopK")
def _top_k(s: Scope, node: ir.Node) -> list[ir.Node]:
    inputs = (node.input(0), s.const([node.attr("k")]))
    return [replace(node, inputs=inputs, attributes=without(node, "k"))]


@rule(11, "Clip")
def _clip(s: Scope, node: ir.Node) -> list[ir.Node]:
    limits, nodes = [], []
    for name in ("min", "max"):
        value = node.attr(name)
        if value is not None:
            nodes.append(_scalar(s, node, value))
        limits.append("" if value is None else nodes[-1].output(0))
    inputs = (node.input(0), *limits)
    return [*nodes, replace(node, inputs=inputs, attributes=without(node, "min", "max"))]


@rule(11, "Pad")
def _pad(s: Scope, node: ir.Node) -> list[ir.Node]:
    value = _scalar(s, node, node.attr("value", 0.0))
    inputs = (node.input(0), s.const(node.attr("pads")), value.output(0))
    return [value, replace(node, inputs=inputs, attributes=without(node, "pads", "value"))]


@rule(12, "Dropout")
def _dropout(s: Scope, node: ir.Node) -> list[ir.Node]:
    """The ratio became an input; the mask used to be a float tensor."""
    mask = node.output(1)
    if s.version < 10:
        if s.is_read(mask):
            raise Unraisable("its mask, which is read, was a float tensor before opset 10")
        mask = ""
    ratio = s.constant(np.array(node.attr("ratio", 0.5), np.float32), node)
    inputs, outputs = (node.input(0), ratio.output(0)), (node.outputs[0], *filter(None, (mask,)))
    return [
        ratio,
        replace(node, inputs=inputs, outputs=outputs, attributes=without(node, "ratio")),
    ]


@rule(11, "Scatter")
def _scatter(s: Scope, node: ir.Node) -> list[ir.Node]:
    return [replace(node, op_type="ScatterElements")]


@rule(13, "Upsample")
def _upsample(s: Scope, node: ir.Node) -> list[ir.Node]:
    """Resize by another name; the op ended with opset 10, exporters went on writing it."""
    factors = node.attr("scales")
    if factors is None:
        return older_resize(s, node, node.input(1))
    scales = s.constant(np.array(factors, np.float32), node)
    return [scales, *older_resize(s, node, scales.output(0))]


@rule(9, "Scan")
def _scan(s: Scope, node: ir.Node) -> list[ir.Node]:
    raise Unraisable("Scan over a batch ended with opset 9")
