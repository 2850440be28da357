"""x sigmoid(x) in nodes of its own, with its gradient, becomes QuickGelu with alpha = 1.

Works on the lowered nodes. One pass forth and one back, and the sigmoid need not be kept.
"""

from __future__ import annotations

from edge_train.graph import ir
from edge_train.graph.lowering.fused.rewriting import (
    Rewriter,
    is_native,
    is_stock,
    may_be_alike,
)


def take_silu(r: Rewriter, index: int, node: ir.Node) -> None:
    """dy s + (dy x) s (1 - s), where s = sigmoid(x), from the second half's SigmoidGrad."""
    if not is_native(node, "SigmoidGrad") or len(node.outputs) != 1:
        return
    inner, s = r.maker(node.inputs[0], "Mul"), r.origin(node.inputs[1])
    sigmoid, ends = r.maker(s, "Sigmoid"), r.readers(node.outputs[0])
    total = r.nodes[ends[0]] if len(ends) == 1 else None
    if inner is None or sigmoid is None or total is None or not is_stock(total, "Add", "Sum"):
        return
    x = r.origin(sigmoid.inputs[0])
    dy = _other(r, inner, x)
    outer = r.maker(_other(r, total, r.origin(node.outputs[0])), "Mul")
    if not dy or outer is None or _other(r, outer, s) != dy:
        return
    if not may_be_alike(r.b.shapes, dy, x) or not r.only_read_by(node.outputs[0], *ends):
        return
    r.nodes[index] = None
    r.nodes[ends[0]] = _kernel("QuickGeluGrad", (dy, x), total)
    _forward(r, x, s, (index, r.number(outer.outputs[0])))


def _forward(r: Rewriter, x: str, s: str, gradients: tuple[int, ...]) -> None:
    """x s as a kernel where nothing else reads s."""
    for reader in set(r.readers(s)) - set(gradients):
        node = r.nodes[reader]
        if node is None or not is_stock(node, "Mul") or _other(r, node, s) != x:
            continue
        if r.only_read_by(s, reader, *gradients) and r.number(x) < reader:
            r.nodes[reader] = _kernel("QuickGelu", (x,), node)


def _kernel(op_type: str, inputs: tuple[str, ...], node: ir.Node) -> ir.Node:
    return ir.make_node(op_type, inputs, node.outputs, node.name, ir.NATIVE, alpha=1.0)


def _other(r: Rewriter, node: ir.Node, name: str) -> str:
    """The one of two inputs that is not ``name``, "" where neither or another number is."""
    inputs = [r.origin(each) for each in node.inputs]
    if len(inputs) != 2 or name not in inputs:
        return ""
    return inputs[1 - inputs.index(name)]
