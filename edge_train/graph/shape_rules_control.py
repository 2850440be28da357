"""Shape rules of control flow: Scan."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from edge_train.graph import ir
from edge_train.graph.shape_rules import Facts, like, rule

if TYPE_CHECKING:
    from edge_train.graph.shapes import Shapes


@rule("Scan")
def _scan(s: Shapes, node: ir.Node) -> Facts:
    """States keep their sizes; outputs of the body get the length of the sequences in front."""
    body: ir.Graph = node.attr("body")
    count = len(node.inputs) - node.attr("num_scan_inputs")
    if any(node.attr("scan_input_axes", ())) or any(node.attr("scan_output_axes", ())):
        return []
    facts = [like(s, name) for name in node.inputs]
    slices = [(kind, dims and dims[1:]) for kind, dims in facts[count:]]
    inputs = [
        replace(value, elem_type=kind or value.elem_type, dims=dims, type_proto=None)
        for value, (kind, dims) in zip(body.inputs, facts[:count] + slices, strict=True)
    ]
    inner = type(s).of(replace(body, inputs=inputs), outer=s)
    steps = [dims[0] for _, dims in facts[count:] if dims]
    stacked = []
    for value in body.outputs[count:]:
        kind, dims = like(inner, value.name)
        stacked.append((kind, None if dims is None else (steps[0] if steps else None, *dims)))
    return [*facts[:count], *stacked]
