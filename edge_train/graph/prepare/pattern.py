"""Pattern: looks for a formula backwards from its last node, and remembers what it went over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import TypeVar

from edge_train import dtypes
from edge_train.graph import ir
from edge_train.graph.passes import outer_reads
from edge_train.graph.shape_rules import ints
from edge_train.graph.shapes import Shapes

Found = TypeVar("Found")


class NoMatch(Exception):
    """The graph has another formula here."""


class Graph:
    """A graph with the tables that matching asks for."""

    def __init__(self, graph: ir.Graph, keep: Collection[str]) -> None:
        self.shapes = Shapes.of(graph)
        self.producers = graph.producers()
        self.readers = Counter(name for node in graph.nodes for name in outer_reads(node))
        self.ends = {value.name for value in graph.outputs} | set(keep)
        self._tensors, self._keep = graph.initializers, set(keep)

    def number(self, name: str, beside: str) -> float | None:
        """The value of a constant of one element that is no parameter; None where it may have
        more axes than the operand ``beside`` it, which the result then has too."""
        tensor = self._tensors.get(name)
        if tensor is None or name in self._keep or tensor.raw is None or len(tensor.raw) > 8:
            return None
        if len(tensor.dims) > (self.shapes.rank(beside) or 0):
            return None
        array = tensor.array()
        return float(array.ravel()[0]) if array.size == 1 else None


class Pattern:
    """One attempt to match. ``nodes``: output name -> node, of everything it went over."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.nodes: dict[str, ir.Node] = {}

    def first(self, attempts: Iterable[Callable[[], Found]]) -> Found:
        """The result of the first attempt that matches; the failed ones leave no trace."""
        before = dict(self.nodes)
        for attempt in attempts:
            self.nodes = dict(before)
            try:
                return attempt()
            except NoMatch:
                continue
        raise NoMatch

    def made_by(self, name: str, *op_types: str) -> ir.Node:
        """The node of one of these ops that makes a tensor."""
        node = self.graph.producers.get(name)
        if node is None or node.op_type not in op_types or node.domain not in ir.ONNX_DOMAINS:
            raise NoMatch
        self.nodes[name] = node
        return node

    def with_number(self, name: str, op_type: str, *values: float, near: float = 1e-4) -> str:
        """The other operand of ``op_type`` with a constant; the first one of Div, Sub and Pow."""
        node = self.made_by(name, op_type)
        sides = (0, 1) if op_type in ("Add", "Mul") else (1,)
        for side in sides:
            number = self.graph.number(node.inputs[side], node.inputs[1 - side])
            if number is not None and any(abs(number - v) <= near * abs(v) for v in values):
                return node.inputs[1 - side]
        raise NoMatch

    def number_beside(self, name: str, op_type: str) -> tuple[str, float]:
        """Both operands of ``op_type`` where one is a constant number."""
        node = self.made_by(name, op_type)
        for side in (1, 0):
            number = self.graph.number(node.inputs[side], node.inputs[1 - side])
            if number is not None:
                return node.inputs[1 - side], number
        raise NoMatch

    def squared(self, name: str) -> str:
        """x of Pow(x, 2) or Mul(x, x)."""
        node = self.made_by(name, "Pow", "Mul")
        if node.op_type == "Mul":
            if node.inputs[0] != node.inputs[1]:
                raise NoMatch
            return node.inputs[0]
        return self.with_number(name, "Pow", 2.0)

    def mean_axes(self, name: str) -> tuple[str, tuple[int, ...]]:
        """x and the axes of a ReduceMean over the last axes that keeps the rank."""
        node = self.made_by(name, "ReduceMean")
        x = node.inputs[0]
        axes, rank = ints(self.graph.shapes.contents(node.input(1))), self.graph.shapes.rank(x)
        if not axes or rank is None or not node.attr("keepdims", 1):
            raise NoMatch
        last = tuple(sorted(axis % rank for axis in axes))
        if last != tuple(range(rank - len(last), rank)):
            raise NoMatch
        return x, last

    def check_private(self, end: str) -> None:
        """NoMatch if what lies between is an output or is read by a node outside of the match."""
        inside = Counter(name for node in self.nodes.values() for name in outer_reads(node))
        for name in self.nodes:
            if name != end and (
                name in self.graph.ends or self.graph.readers[name] != inside[name]
            ):
                raise NoMatch

    def check_float(self, x: str) -> str:
        """``x``; NoMatch unless it is float32: onnxruntime has the ops for that."""
        if self.graph.shapes.elem_type(x) != dtypes.FLOAT:
            raise NoMatch
        return x

    def check_sizes(self, name: str, x: str, axes: tuple[int, ...]) -> None:
        """NoMatch unless a tensor has exactly the sizes of ``x`` along its last axes."""
        dims, sizes = self.graph.shapes.dims(x) or (), self.graph.shapes.dims(name)
        if sizes is None or ints(sizes) is None or tuple(dims[axes[0] :]) != sizes:
            raise NoMatch
