"""What stands around a kernel goes into it: biases, sums of gradients, sums over rows, residuals.

Each of these is one pass over memory less. Works on the lowered nodes.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from edge_train import dtypes
from edge_train.graph import ir
from edge_train.graph.lowering.builder import Builder
from edge_train.graph.lowering.fused.heads import fold_products, take_heads, take_heads_back
from edge_train.graph.lowering.fused.rewriting import (
    Rewriter,
    bias_of,
    is_native,
    is_stock,
    padded,
    sums_rows,
    sweep,
)
from edge_train.graph.lowering.fused.silu import take_silu

#: kernels that add a bias to x: where x is
_CURVES = {"Gelu": 0, "FastGelu": 0, "QuickGelu": 0}
_CURVES |= {"GeluGrad": 1, "FastGeluGrad": 1, "QuickGeluGrad": 1}
#: kernels that sum output 0 over all axes but the last: the output for it
_SUMS = {"LayerNormalizationGrad": 3}
_SUMS |= dict.fromkeys(("GeluGrad", "FastGeluGrad", "QuickGeluGrad"), 1)
_SUMS |= dict.fromkeys(("SigmoidGrad", "TanhGrad", "ReluGrad", "LeakyReluGrad", "HardSwishGrad"), 1)
#: gradients that LayerNormalizationGrad adds up
_MOST_ADDENDS = 4
#: what it and its outputs have before further addends and sums
_NORM_INPUTS, _NORM_RESULTS = 5, 3


def fold_chains(b: Builder, outputs: set[str]) -> None:
    """Rewrites the builder's nodes; ``outputs``: the tensors that stand for the graph's own."""
    for rule in (
        take_silu,
        _bias_into_curve,
        _scale_into_softmax,
        _addends_into_norm,
        _row_sums,
        _residual_into_norm,
        fold_products,
        take_heads,
        take_heads_back,
    ):
        sweep(b, outputs, rule)


def _bias_into_curve(r: Rewriter, index: int, node: ir.Node) -> None:
    """Add, then GELU and its gradient: both add the bias themselves."""
    parts = bias_of(r, node) if is_stock(node, "Add") else None
    if parts is None:
        return
    (total,), readers = node.outputs, r.readers(node.outputs[0])
    curves = [r.nodes[reader] for reader in readers]
    if not r.only_read_by(total, *readers) or not all(_takes_bias(r, c, total) for c in curves):
        return
    for reader, curve in zip(readers, curves, strict=True):
        if curve is not None:
            r.nodes[reader] = replace(curve, inputs=_swapped(r, curve, total, parts[0], parts[1]))


def _takes_bias(r: Rewriter, node: ir.Node | None, x: str) -> bool:
    place = _CURVES.get(node.op_type) if node is not None and node.domain == ir.NATIVE else None
    if node is None or place is None or len(node.inputs) != place + 1:
        return False
    return [r.origin(name) == x for name in node.inputs].index(True) == place


def _swapped(r: Rewriter, node: ir.Node, total: str, x: str, bias: str) -> tuple[str, ...]:
    return (*(x if r.origin(name) == total else name for name in node.inputs), bias)


def _scale_into_softmax(r: Rewriter, index: int, node: ir.Node) -> None:
    """The gradient of a softmax, then a product with (or a division by) a constant."""
    if not is_native(node, "SoftmaxGrad"):
        return
    readers = r.readers(node.outputs[0])
    after = r.nodes[readers[0]] if len(readers) == 1 else None
    if after is None or not is_stock(after, "Div", "Mul"):
        return
    if (
        not r.only_read_by(node.outputs[0], *readers)
        or r.origin(after.inputs[0]) != node.outputs[0]
    ):
        return
    value = r.b.constant_value(after.inputs[1])
    if value is None or value.shape not in ((), (1,)) or value.dtype != np.float32:
        return
    factor = float(value.reshape(()))
    scale = factor if after.op_type == "Mul" else np.reciprocal(np.float64(factor))
    r.nodes[index] = replace(
        node,
        outputs=after.outputs,
        attributes={**node.attributes, "scale": ir.Attribute.of("scale", float(scale))},
    )
    r.nodes[readers[0]] = None


def _addends_into_norm(r: Rewriter, index: int, node: ir.Node) -> None:
    """Gradients that meet at the output of a layer normalisation."""
    if not is_native(node, "LayerNormalizationGrad") or len(node.inputs) != _NORM_INPUTS:
        return
    dy, x = node.inputs[:2]
    total = r.maker(dy, "Sum", "Add")
    if total is None or not 2 <= len(total.inputs) <= _MOST_ADDENDS:
        return
    dims = r.b.shapes.dims(x)
    same = dims is not None and None not in dims
    same = same and all(r.b.shapes.dims(name) == dims for name in total.inputs)
    if same and r.only_read_by(dy, index):
        first, *others = total.inputs
        r.nodes[index] = replace(node, inputs=(first, *node.inputs[1:], *others))


def _row_sums(r: Rewriter, index: int, node: ir.Node) -> None:
    """A bias's gradient: the sum over all axes but the last of what a kernel makes."""
    if not is_stock(node, "ReduceSum") or not sums_rows(r, node):
        return
    data = r.origin(node.inputs[0])
    number = r.number(data)
    maker = r.nodes[number] if number >= 0 else None
    if maker is None or maker.domain != ir.NATIVE or maker.outputs[0] != data:
        return
    place = _SUMS.get(maker.op_type)
    if place is None or len(maker.outputs) > place:
        return
    if place == _NORM_RESULTS and r.b.shapes.rank(maker.inputs[2]) != 1:
        return
    r.nodes[number] = replace(maker, outputs=(*padded(maker.outputs, place), node.outputs[0]))
    r.nodes[index] = None


def _residual_into_norm(r: Rewriter, index: int, node: ir.Node) -> None:
    """Layer normalisation of a sum, a bias within it perhaps: x is made on the way."""
    if not is_stock(node, "LayerNormalization") or r.b.shapes.rank(node.inputs[1]) != 1:
        return
    x = r.origin(node.inputs[0])
    rank, total = r.b.shapes.rank(x), r.maker(x, "Add")
    if total is None or rank is None or node.attr("axis", -1) not in (-1, rank - 1):
        return
    dims = r.b.shapes.dims(x)
    added = [r.b.shapes.dims(name) for name in total.inputs]
    if dims is None or None in dims or added != [dims, dims] or not _is_plain(r, node, x):
        return
    if r.first_use(x) != index:
        return  # x would be made after its first use
    parts, scale, shift = _parts(r, total, index), node.inputs[1], node.input(2)
    r.nodes[r.number(x)] = None
    r.nodes[index] = ir.make_node(
        "AddedLayerNormalization",
        (*parts, scale, shift),
        (*padded(node.outputs, _NORM_RESULTS), "" if r.only_read_by(x, index) else x),
        node.name,
        ir.NATIVE,
        epsilon=node.attr("epsilon", 1e-5),
    )


def _is_plain(r: Rewriter, node: ir.Node, x: str) -> bool:
    """Whether everything is float32, statistics included."""
    floats = [x, *filter(None, node.inputs[1:])]
    return node.attr("stash_type", 1) == 1 and all(
        r.b.shapes.elem_type(name) == dtypes.FLOAT for name in floats
    )


def _parts(r: Rewriter, total: ir.Node, index: int) -> tuple[str, str, str]:
    """(a, bias, residual) of a sum; no bias where neither addend has one of its own."""
    for a, residual in (total.inputs, total.inputs[::-1]):
        inner = r.maker(a, "Add")
        biased = bias_of(r, inner) if inner is not None else None
        if biased is not None and r.only_read_by(a, r.number(total.outputs[0])):
            return (*biased, residual)
    return total.inputs[0], "", total.inputs[1]
