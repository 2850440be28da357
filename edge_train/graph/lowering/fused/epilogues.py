"""A Clip is done by the kernel that makes its input, its gradient by the one that makes its dy.

So no tensor goes through memory once more for it. Works on the lowered nodes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from edge_train.graph import ir
from edge_train.graph.lowering.builder import Builder
from edge_train.graph.passes import outer_reads

#: kernels that can clip output 0: the inputs they have before the two bounds; the bits come last
_CLIPS = {"PointwiseConv": 3, "DepthwiseConv": 3, "BatchNorm": 5}
#: the outputs they have before the bits, where more than one
_RESULTS = {"BatchNorm": 5}
#: kernels that can mask output 0 by bits: the inputs they have before the bits
_MASKS = {"PointwiseConvGrad": 3, "DepthwiseConvGrad": 3}


def fold_clips(b: Builder, outputs: set[str]) -> None:
    """Moves every Clip and ClipGrad that stands alone behind such a kernel into the kernel.

    ``outputs``: the tensors that stand for the graph's own outputs.
    """
    reads = Counter(name for node in b.nodes for name in outer_reads(node))
    reads.update([*outputs, *b.gradients.values(), *b.updates.values()])
    makers: dict[str, int] = {}
    nodes: list[ir.Node | None] = []
    for node in b.nodes:
        made = node.inputs[0] if node.inputs else ""
        place = makers.get(made) if reads[made] == 1 and node.domain == ir.NATIVE else None
        maker = nodes[place] if place is not None else None
        planes = (b.shapes.rank(made) or 0) > 2  # bits stand by planes of (N, C, ...)
        folded = _folded(maker, node) if maker is not None and planes else None
        if folded is not None and place is not None and _is_made(nodes[:place], makers, node):
            nodes[place], node = folded, folded
        else:
            place = len(nodes)
            nodes.append(node)
        makers.update(dict.fromkeys((name for name in node.outputs if name), place))
    b.nodes = [node for node in nodes if node is not None]


def _folded(maker: ir.Node, node: ir.Node) -> ir.Node | None:
    """``maker`` doing the work of ``node`` too, None where it cannot."""
    if maker.domain != ir.NATIVE or not maker.outputs or maker.outputs[0] != node.inputs[0]:
        return None
    rest = _padded(maker.outputs[1:], _RESULTS.get(maker.op_type, 1) - 1)
    if node.op_type == "Clip" and maker.op_type in _CLIPS:
        if len(maker.inputs) > _CLIPS[maker.op_type]:
            return None  # it clips already
        inputs = _padded(maker.inputs, _CLIPS[maker.op_type]) + node.inputs[1:]
        outputs = (node.outputs[0], *rest, node.outputs[1])
        attributes = {**maker.attributes, **node.attributes}
        return replace(maker, inputs=inputs, outputs=outputs, attributes=attributes)
    if node.op_type == "ClipGrad" and maker.op_type in _MASKS:
        if len(maker.inputs) > _MASKS[maker.op_type]:
            return None
        inputs = _padded(maker.inputs, _MASKS[maker.op_type]) + node.inputs[1:]
        return replace(maker, inputs=inputs, outputs=(node.outputs[0], *rest))
    return None


def _padded(inputs: tuple[str, ...], count: int) -> tuple[str, ...]:
    return inputs + ("",) * (count - len(inputs))


def _is_made(before: list[ir.Node | None], makers: dict[str, int], node: ir.Node) -> bool:
    """Whether what ``node`` reads besides its first input exists before its maker runs."""
    return all(makers.get(name, -1) < len(before) for name in node.inputs[1:])
