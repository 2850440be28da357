"""A Clip and the nodes of its gradient become two kernels with a bit an element between them.

onnxruntime-training writes the gradient of Clip(x, low, high) as dy * Cast(x >= low and x <= high):
five passes, and x is kept for them. One bit for each element says the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from edge_train import dtypes
from edge_train.graph import ir
from edge_train.graph.lowering.fused.rewriting import is_stock
from edge_train.graph.lowering.registry import MOST_AXES
from edge_train.graph.passes import live_nodes
from edge_train.graph.shapes import Shapes

_BOUNDS = {"GreaterOrEqual": 1, "LessOrEqual": 2}


@dataclass(frozen=True)
class _Readers:
    """The nodes that read each tensor, and the tensors that must keep their names."""

    table: Mapping[str, list[ir.Node]]
    kept: frozenset[str]

    @staticmethod
    def of(graph: ir.Graph) -> _Readers:
        table: dict[str, list[ir.Node]] = {}
        for node in graph.nodes:
            for name in node.inputs:
                table.setdefault(name, []).append(node)
        inner = {n for node in graph.nodes for body in ir.subgraphs(node) for n in _reads(body)}
        return _Readers(table, frozenset(v.name for v in graph.outputs) | inner)

    def only(self, name: str, op_type: str) -> ir.Node | None:
        """The one node that reads ``name``, if it is of that op and nothing else needs it."""
        readers = self.table.get(name, [])
        if name in self.kept or len(readers) != 1 or not is_stock(readers[0], op_type):
            return None
        return readers[0]


def _reads(graph: ir.Graph) -> set[str]:
    return {name for node in graph.nodes for name in node.inputs}


def with_clip_bits(model: ir.Model, shapes: Shapes) -> ir.Model:
    """The model with the gradient of every float32 Clip from bits that its forward pass leaves."""
    readers = _Readers.of(model.graph)
    found: dict[str, tuple[str, str]] = {}  # output of the gradient's product -> dy, bits
    nodes = []
    for node in model.graph.nodes:
        products = _products(node, readers) if _fits(node, shapes) else {}
        first = node.outputs[0] if node.outputs else ""
        if products:
            bits = f"{first}/bits"
            found.update((output, (dy, bits)) for output, dy in products.items())
            nodes.append(replace(node, domain=ir.NATIVE, outputs=(first, bits), attributes={}))
        elif first in found:
            nodes.append(ir.make_node("ClipGrad", found[first], [first], node.name, ir.NATIVE))
        else:
            nodes.append(node)
    if not found:
        return model
    nodes = live_nodes(nodes, [value.name for value in model.graph.outputs])
    imports = [*(pair for pair in model.opset_imports if pair[0] != ir.NATIVE), (ir.NATIVE, 1)]
    return replace(model, graph=replace(model.graph, nodes=nodes), opset_imports=imports)


def _fits(node: ir.Node, shapes: Shapes) -> bool:
    x = node.input(0)
    known = is_stock(node, "Clip") and shapes.elem_type(x) == dtypes.FLOAT
    return known and (shapes.rank(x) or 0) <= MOST_AXES


def _products(clip: ir.Node, readers: _Readers) -> dict[str, str]:
    """The products dy * mask whose mask holds within the bounds of ``clip``: output -> dy."""
    bounds = {place: clip.input(place) for place in (1, 2) if clip.input(place)}
    sides: dict[int, set[str]] = {1: set(), 2: set()}
    for node in readers.table.get(clip.inputs[0], []):
        place = _BOUNDS.get(node.op_type) if is_stock(node, *_BOUNDS) else None
        if place and node.inputs == (clip.inputs[0], bounds.get(place)):
            sides[place].add(node.outputs[0])
    masks = sides[1] | sides[2] if len(bounds) == 1 else _joined(sides, readers)
    return dict(pair for mask in masks for pair in _product(mask, readers))


def _joined(sides: Mapping[int, set[str]], readers: _Readers) -> set[str]:
    """The conjunctions of a comparison with each of the bounds."""
    nodes = (readers.only(name, "And") for name in sides[1])
    return {
        node.outputs[0]
        for node in nodes
        if node is not None and set(node.inputs) & sides[1] and set(node.inputs) & sides[2]
    }


def _product(mask: str, readers: _Readers) -> list[tuple[str, str]]:
    cast = readers.only(mask, "Cast")
    if cast is None or cast.attr("to") != dtypes.FLOAT:
        return []
    product = readers.only(cast.outputs[0], "Mul")
    if product is None:
        return []
    dy = [name for name in product.inputs if name != cast.outputs[0]]
    return [(product.outputs[0], dy[0])] if len(dy) == 1 else []
