"""Builder: a Formula for lowering, with what a lowered graph hands to the runtime."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from edge_train import dtypes
from edge_train.graph import ir
from edge_train.graph.formula import TO_END, Formula, Operand, Refuse
from edge_train.graph.passes import outer_reads
from edge_train.graph.shapes import Shapes

__all__ = ["TO_END", "Builder", "LabelRange", "Operand", "Refuse"]


class Builder(Formula):
    """Collects the nodes and constants of a lowered graph."""

    def __init__(self, graph: ir.Graph, shapes: Shapes, fused: bool = False) -> None:
        super().__init__(graph, shapes)
        #: whether nodes may become our own kernels
        self.fused = fused
        #: state that a training step replaces (running statistics): graph input -> new value
        self.updates: dict[str, str] = {}
        #: gradient accumulators: buffer input -> gradient tensor
        self.gradients: dict[str, str] = {}
        #: class-index inputs of losses, checked before a step runs
        self.labels: list[LabelRange] = []
        #: what a forward rule leaves for its gradient's rule: source tensor -> lowered tensor
        self.saved: dict[str, str] = {}

        self._ends = frozenset(value.name for value in graph.outputs)
        self._readers: dict[str, list[ir.Node]] | None = None

    @property
    def node(self) -> ir.Node:
        """The source node that is being lowered, with the names from before lowering."""
        if self._node is None:
            raise LookupError("no node has begun")
        return self._node

    def readers(self, name: str) -> Sequence[ir.Node]:
        """The nodes of the source graph that read a tensor, themselves or in a subgraph."""
        if self._readers is None:
            self._readers = {}
            for node in self.source.nodes:
                for read in outer_reads(node):
                    self._readers.setdefault(read, []).append(node)
        return self._readers.get(name, ())

    def is_output(self, name: str) -> bool:
        """Whether a tensor is an output of the source graph."""
        return name in self._ends

    def is_read(self, name: str) -> bool:
        """Whether a tensor of the source graph is an output, or read by a node or a subgraph."""
        return self.is_output(name) or bool(self.readers(name))

    def native(
        self, op_type: str, *inputs: str, like: Sequence[str] = ("",), **attributes: Any
    ) -> tuple[str, ...]:
        """Adds one of our own kernels; ``like``: for each output a tensor of its dtype and shape.

        An empty name in ``like`` leaves an output's shape open, float32.
        """
        outputs = self.ops(op_type, *inputs, n=len(like), domain=ir.NATIVE, **attributes)
        for output, model in zip(outputs, like, strict=True):
            known = model or output
            dims = self.shapes.dims(model) if model else None
            self.shapes.set(output, self.elem_type(known) if model else dtypes.FLOAT, dims)
        return outputs

    def native_some(
        self,
        op_type: str,
        inputs: Sequence[str],
        like: Sequence[str],
        wanted: Sequence[bool],
        **attributes: Any,
    ) -> tuple[str, ...]:
        """A kernel of our own whose outputs are optional: those not ``wanted`` are left out."""
        names = self.native(op_type, *inputs, like=like, **attributes)
        names = tuple(name if asked else "" for name, asked in zip(names, wanted, strict=True))
        self.nodes[-1] = replace(self.nodes[-1], outputs=names)
        return names

    def kept(self, node: ir.Node) -> tuple[str, ...]:
        """Adds an ordinary node under new output names, which are returned."""
        outputs = tuple(self._fresh(node.op_type) if name else "" for name in node.outputs)
        self.nodes.append(replace(node, outputs=outputs))
        self.shapes.infer_node(self.nodes[-1])
        return outputs


class LabelRange:
    """A class-index input of a loss: values in [0, classes) or equal to ``ignore_index``.

    ``classes`` is None when the number is known only at run time; ``observed`` then names an int64
    tensor (lowest, highest, classes) that the graph computes.
    """

    __slots__ = ("classes", "ignore_index", "labels", "observed")

    def __init__(
        self, labels: str, classes: int | None, ignore_index: int | None, observed: str = ""
    ) -> None:
        self.labels = labels
        self.classes = classes
        self.ignore_index = ignore_index
        self.observed = observed
