"""What older onnxruntimes compute wrong, said in nodes that they compute right."""

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
        b.nodes.append(node)


def _miscounts_padding(node: ir.Node) -> bool:
    """AveragePool of opset 19 in onnxruntime 1.21 to 1.23: counts no padding behind the end."""
    if node.op_type != "AveragePool" or node.domain not in ir.ONNX_DOMAINS:
        return False
    pads, counted = node.attr("pads"), node.attr("count_include_pad", 0)
    if not counted or not isinstance(pads, tuple) or node.attr("ceil_mode", 0):
        return False
    return pads[: len(pads) // 2] != pads[len(pads) // 2 :]


def _padded_before(b: Builder, node: ir.Node) -> ir.Node:
    pads = node.attr("pads")
    rank = len(pads) // 2
    everything = (0, 0, *pads[:rank], 0, 0, *pads[rank:])
    x = b.op("Pad", node.inputs[0], b.ints(*everything))
    gone = ("pads", "count_include_pad")
    kept = {name: value for name, value in node.attributes.items() if name not in gone}
    return replace(node, inputs=(x,), attributes=kept)
