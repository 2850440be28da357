"""Gradients: the Formula that gradient rules write to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from edge_train.graph import ir
from edge_train.graph.formula import Formula
from edge_train.graph.passes import all_names, fresh_name
from edge_train.graph.shapes import Shapes


class Gradients(Formula):
    """The Formula that gradient rules write to."""

    prefix = "gradient"

    def __init__(self, graph: ir.Graph, shapes: Shapes) -> None:
        super().__init__(graph, shapes)
        #: forward nodes that get more outputs, or another op, for the backward pass
        self.replaced: dict[int, ir.Node] = {}
        self._index = 0
        self._taken: set[str] = set()
        self._wanted: frozenset[int] = frozenset()
        #: tensors with a gradient that the current node's subgraphs read
        self.captured: frozenset[str] = frozenset()

    def enter(
        self, node: ir.Node, wanted: frozenset[int], captured: frozenset[str] = frozenset()
    ) -> None:
        """Starts the rule of ``node``: names, numbering and wanted inputs follow it."""
        self.begin(node)
        self._index, self._wanted, self.captured = 0, wanted, captured

    @contextmanager
    def nested(self) -> Iterator[None]:
        """Other rules may run inside, for a body; what they keep for later is forgotten."""
        kept = (self._node, self._index, self._wanted, self.captured, dict(self._shape_of))
        try:
            yield
        finally:
            self._node, self._index, self._wanted, self.captured, self._shape_of = kept

    def wants(self, index: int) -> bool:
        """Whether the gradient of input ``index`` of the current node is needed."""
        return index in self._wanted

    def const(self, value: np.ndarray) -> str:
        """A constant; it counts in the numbering of the node names, as in the reference."""
        self._index += 1
        return super().const(value)

    def _node_name(self, op_type: str, output: str) -> str:
        self._index += 1
        owner = self._node.name if self._node else ""
        return f"{owner}_Grad/{op_type}_{self._index - 1}"

    def beside(self, node: ir.Node, suffix: str) -> str:
        """A name for a new output of a forward node: ``<first output>_<suffix>`` where it is free.

        Outputs that are left out have no name to share.
        """
        self._taken = self._taken or all_names(self.source)
        return fresh_name(f"{next(filter(None, node.outputs))}_{suffix}", self._taken)

    def extra_output(self, node: ir.Node, index: int, suffix: str, elem_type: int) -> str:
        """Output ``index`` of a forward node, added with a name beside its others if missing."""
        current = self.current(node)
        if current.output(index):
            return current.output(index)
        name = self.beside(current, suffix)
        outputs = list(current.outputs) + [""] * (index + 1 - len(current.outputs))
        outputs[index] = name
        self.replace(node, replace(current, outputs=tuple(outputs)))
        self.shapes.set(name, elem_type, None)
        self.shapes.infer_node(self.current(node))
        return name

    def training_op(
        self, op_type: str, *inputs: str, makes: Sequence[bool], **attributes: Any
    ) -> tuple[str, ...]:
        """Adds a com.microsoft node with an output for each true entry of ``makes``, "" for others.

        A list that ends in omitted inputs is cut.
        """
        while inputs and not inputs[-1]:
            inputs = inputs[:-1]
        outputs = self.ops(op_type, *inputs, n=len(makes), domain=ir.MICROSOFT, **attributes)
        kept = tuple(name if made else "" for name, made in zip(outputs, makes, strict=True))
        self.nodes[-1] = replace(self.nodes[-1], outputs=kept)
        return kept

    def current(self, node: ir.Node) -> ir.Node:
        """The forward node as it stands now."""
        return self.replaced.get(id(node), node)

    def replace(self, node: ir.Node, by: ir.Node) -> None:
        """Puts another node in the place of a forward node."""
        self.replaced[id(node)] = by


def attributes_of(node: ir.Node) -> dict[str, Any]:
    """The attributes of a forward node as Python values, for a gradient node that repeats them."""
    return {name: node.attr(name) for name in node.attributes}
