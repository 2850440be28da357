"""What some onnxruntimes compute wrong or crash at, said in nodes that they all compute right."""

from __future__ import annotations

from dataclasses import replace

from edge_train.graph import ir
from edge_train.graph.lowering.builder import Builder


def repair(b: Builder) -> None:
    """Rewrites the builder's nodes; every supported onnxruntime agrees on the new ones."""
    nodes, b.nodes = b.nodes, []
    for node in nodes:
        if _miscounts_padding(node):
            node = _padded_before(b, node)
        elif node.op_type == "SkipSimplifiedLayerNormalization" and node.input(3):
            # onnxruntime 1.20 leaves the bias out
            x, skip, gamma, bias = node.inputs
            node = replace(node, inputs=(b.op("Add", x, bias), skip, gamma))
        b.nodes.append(_with_every_part(_without_omitted_end(node)))


def _without_omitted_end(node: ir.Node) -> ir.Node:
    """onnxruntime (1.32 too) crashes as it fuses an Add with a LayerNormalization whose bias is
    there and omitted."""
    count = len(node.inputs)
    while count and not node.inputs[count - 1]:
        count -= 1
    return node if count == len(node.inputs) else replace(node, inputs=node.inputs[:count])


def _with_every_part(node: ir.Node) -> ir.Node:
    """onnxruntime (1.32 too) crashes at a Split that leaves out an output before its last, and
    refuses an If, a Loop and a Scan that leave out any."""
    body = next(ir.subgraphs(node), None)
    if (node.op_type != "Split" and body is None) or node.domain not in ir.ONNX_DOMAINS:
        return node
    outputs = node.outputs
    if body is not None:  # a Loop's body says first whether to go on
        count = len(body.outputs) - (node.op_type == "Loop")
        outputs = (*outputs, *[""] * (count - len(outputs)))
    first = next(filter(None, outputs), node.name)
    every = tuple([name or f"{first}/omitted_{at}" for at, name in enumerate(outputs)])
    return node if every == node.outputs else replace(node, outputs=every)


def _miscounts_padding(node: ir.Node) -> bool:
    """AveragePool of opset 19 in onnxruntime 1.21 to 1.23: unequal pads are counted wrong."""
    if node.op_type != "AveragePool" or node.domain not in ir.ONNX_DOMAINS:
        return False
    pads, counted = node.attr("pads"), node.attr("count_include_pad", 0)
    if not counted or not isinstance(pads, tuple) or node.attr("ceil_mode", 0):
        return False
    return len(set(pads)) > 1


def _padded_before(b: Builder, node: ir.Node) -> ir.Node:
    pads = node.attr("pads")
    rank = len(pads) // 2
    everything = (0, 0, *pads[:rank], 0, 0, *pads[rank:])
    x = b.op("Pad", node.inputs[0], b.ints(*everything))
    gone = ("pads", "count_include_pad")
    kept = {name: value for name, value in node.attributes.items() if name not in gone}
    return replace(node, inputs=(x,), attributes=kept)
