"""Matching and replacing nodes of a lowered graph: who makes a tensor, who reads it.

Identity nodes are looked through: ``origin`` of a tensor is the one that it is a copy of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from edge_train import dtypes
from edge_train.graph import ir
from edge_train.graph.lowering.builder import Builder
from edge_train.graph.passes import outer_reads
from edge_train.graph.shapes import Shapes


class Rewriter:
    """The builder's nodes by number while some of them are replaced."""

    def __init__(self, b: Builder, kept: Iterable[str]) -> None:
        self.b = b
        self.nodes: list[ir.Node | None] = list(b.nodes)
        self._copies: dict[str, str] = {}
        self._makers: dict[str, int] = {}
        self._readers: dict[str, list[int]] = {}
        self._first: dict[str, int] = {}
        for index, node in enumerate(b.nodes):
            if is_stock(node, "Identity"):
                source = self._copies[node.outputs[0]] = self.origin(node.inputs[0])
                self._first.setdefault(source, index)
                continue
            self._makers.update(dict.fromkeys(filter(None, node.outputs), index))
            for name in dict.fromkeys(map(self.origin, outer_reads(node))):
                self._readers.setdefault(name, []).append(index)
                self._first.setdefault(name, index)
        self.kept = {self.origin(name) for name in kept}

    def origin(self, name: str) -> str:
        """The tensor that ``name`` is a copy of, itself where a node of its own makes it."""
        return self._copies.get(name, name)

    def maker(self, name: str, *op_types: str) -> ir.Node | None:
        """The node that makes a tensor, None unless it is one of these standard ops."""
        index = self._makers.get(self.origin(name))
        node = None if index is None else self.nodes[index]
        return node if node is not None and is_stock(node, *op_types) else None

    def number(self, name: str) -> int:
        """The number of the node that makes a tensor, -1 where none does."""
        return self._makers.get(self.origin(name), -1)

    def readers(self, name: str) -> list[int]:
        """The numbers of the nodes that read a tensor or a copy of it."""
        return self._readers.get(self.origin(name), [])

    def first_use(self, name: str) -> int:
        """The number of the first node that reads or copies a tensor, -1 where none does."""
        return self._first.get(self.origin(name), -1)

    def only_read_by(self, name: str, *numbers: int) -> bool:
        """Whether a tensor goes nowhere but into these nodes."""
        return self.origin(name) not in self.kept and set(self.readers(name)) <= set(numbers)


def sweep(
    b: Builder, outputs: Iterable[str], rule: Callable[[Rewriter, int, ir.Node], None]
) -> None:
    """Offers every node to a rule, which puts others into ``nodes`` of the Rewriter, or None."""
    kept = [*outputs, *b.gradients.values(), *b.updates.values()]
    kept += [label.observed for label in b.labels if label.observed]
    rewriter = Rewriter(b, kept)
    for index, node in enumerate(b.nodes):
        if rewriter.nodes[index] is node:
            rule(rewriter, index, node)
    b.nodes = [node for node in rewriter.nodes if node is not None]


def is_stock(node: ir.Node, *op_types: str) -> bool:
    """Whether a node is one of these standard ops."""
    return node.domain in ir.ONNX_DOMAINS and node.op_type in op_types


def is_native(node: ir.Node | None, op_type: str) -> bool:
    """Whether a node is this kernel of our own."""
    return node is not None and node.domain == ir.NATIVE and node.op_type == op_type


def padded(names: tuple[str, ...], count: int) -> tuple[str, ...]:
    """``names`` with omitted ones behind, ``count`` in all."""
    return names + ("",) * (count - len(names))


def bias_of(r: Rewriter, node: ir.Node) -> tuple[str, str] | None:
    """(x, bias) of an Add along the last axis of x, None for other Adds."""
    for x, bias in (node.inputs, node.inputs[::-1]):
        dims, size = r.b.shapes.dims(x), r.b.shapes.dims(bias)
        if not dims or not size or len(dims) < 2 or len(size) != 1 or dims[-1] != size[0]:
            continue
        if isinstance(size[0], int) and r.b.shapes.elem_type(x) == dtypes.FLOAT:
            return x, bias
    return None


def may_be_alike(shapes: Shapes, a: str, b: str) -> bool:
    """Whether two tensors have as many axes, and no size is known to differ."""
    one, two = shapes.dims(a), shapes.dims(b)
    if one is None or two is None or len(one) != len(two):
        return False
    pairs = zip(one, two, strict=True)
    return all(x == y for x, y in pairs if isinstance(x, int) and isinstance(y, int))


def sums_rows(r: Rewriter, node: ir.Node) -> bool:
    """Whether a ReduceSum leaves the last axis alone."""
    rank, axes = r.b.shapes.rank(node.inputs[0]), r.b.constant_value(node.input(1))
    if rank is None or rank < 2 or axes is None or node.attr("keepdims", 1):
        return False
    return sorted(axes % rank) == list(range(rank - 1))
