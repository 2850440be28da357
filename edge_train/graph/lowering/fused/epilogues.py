"""Clip and ReLU are done by the kernel that makes their input, gradients by the one that makes dy.

So no tensor goes through memory once more for them. Works on the lowered nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from edge_train.graph import ir
from edge_train.graph.lowering.builder import Builder
from edge_train.graph.lowering.fused.rewriting import is_stock, padded
from edge_train.graph.passes import outer_reads

#: kernels that can clip output 0: the inputs they have before the two bounds; the bits come last
_CLIPS = {"PointwiseConv": 3, "DepthwiseConv": 3, "BatchNorm": 5}
#: the outputs they have before the bits, where more than one
_RESULTS = {"BatchNorm": 5}
#: kernels that can mask output 0 by bits: the inputs they have before the bits
_MASKS = {"PointwiseConvGrad": 3, "DepthwiseConvGrad": 3, "MaxPoolGrad": 3, "AveragePoolGrad": 2}


def fold_clips(b: Builder, outputs: set[str]) -> None:
    """Moves every Clip, ClipGrad and trained ReLU that stands alone behind such a kernel into it.

    ``outputs``: the tensors that stand for the graph's own outputs.
    """
    trained = {node.inputs[1] for node in b.nodes if _is_relu_gradient(node)}
    bits: dict[str, str] = {}  # output of a folded ReLU -> its bits
    reads = Counter(name for node in b.nodes for name in outer_reads(node))
    reads.update([*outputs, *b.gradients.values(), *b.updates.values()])
    makers: dict[str, int] = {}
    nodes: list[ir.Node | None] = []
    for source in b.nodes:
        node = _with_bits(source, trained, bits)
        made = node.inputs[0] if node.inputs else ""
        place = makers.get(made) if reads[made] == 1 and node.domain == ir.NATIVE else None
        maker = nodes[place] if place is not None else None
        planes = (b.shapes.rank(made) or 0) > 2  # bits stand by planes of (N, C, ...)
        folded = _folded(maker, node) if maker is not None and planes else None
        if folded is not None and place is not None and _is_made(place, makers, node):
            nodes[place], node = folded, folded
            if source.op_type == "Relu":
                bits[source.outputs[0]] = folded.outputs[-1]
        else:
            place = len(nodes)
            nodes.append(source if source.op_type == "Relu" else node)
        makers.update(dict.fromkeys((name for name in node.outputs if name), place))
    b.nodes = [node for node in nodes if node is not None]


def _is_relu_gradient(node: ir.Node) -> bool:
    return node.domain == ir.NATIVE and node.op_type == "ReluGrad" and len(node.outputs) == 1


def _with_bits(node: ir.Node, trained: set[str], bits: Mapping[str, str]) -> ir.Node:
    """A ReLU that has a gradient as a Clip, and that gradient by bits where it leaves some."""
    if is_stock(node, "Relu") and node.outputs[0] in trained:
        outputs = (node.outputs[0], f"{node.outputs[0]}/bits")
        return ir.make_node("Clip", node.inputs, outputs, node.name, ir.NATIVE, strict=1)
    if _is_relu_gradient(node) and node.inputs[1] in bits:
        inputs = (node.inputs[0], bits[node.inputs[1]])
        return ir.make_node("ClipGrad", inputs, node.outputs, node.name, ir.NATIVE)
    return node


def _folded(maker: ir.Node, node: ir.Node) -> ir.Node | None:
    """``maker`` doing the work of ``node`` too, None where it cannot."""
    if maker.domain != ir.NATIVE or not maker.outputs or maker.outputs[0] != node.inputs[0]:
        return None
    rest = padded(maker.outputs[1:], _RESULTS.get(maker.op_type, 1) - 1)
    if node.op_type == "Clip" and maker.op_type in _CLIPS:
        if len(maker.inputs) > _CLIPS[maker.op_type]:
            return None  # it clips already
        inputs = padded(maker.inputs, _CLIPS[maker.op_type]) + node.inputs[1:]
        outputs = (node.outputs[0], *rest, node.outputs[1])
        attributes = {**maker.attributes, **node.attributes}
        return replace(maker, inputs=inputs, outputs=outputs, attributes=attributes)
    if node.op_type == "ClipGrad" and maker.op_type in _MASKS:
        if len(maker.inputs) > _MASKS[maker.op_type]:
            return None
        inputs = padded(maker.inputs, _MASKS[maker.op_type]) + node.inputs[1:]
        return replace(maker, inputs=inputs, outputs=(node.outputs[0], *rest))
    return None


def _is_made(place: int, makers: Mapping[str, int], node: ir.Node) -> bool:
    """Whether what ``node`` reads besides its first input exists before its maker runs."""
    return all(makers.get(name, -1) < place for name in node.inputs[1:])
