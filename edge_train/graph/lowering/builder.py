"""Builder: a Formula for lowering, with what a lowered graph hands to the runtime."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from edge_train.graph import ir
from edge_train.graph.formula import TO_END, Formula, Operand, Refuse
from edge_train.graph.shapes import Shapes

__all__ = ["TO_END", "Builder", "LabelRange", "Operand", "Refuse"]


class Builder(Formula):
    """Collects the nodes and constants of a lowered graph."""

    def __init__(self, graph: ir.Graph, shapes: Shapes) -> None:
        super().__init__(graph, shapes)
        #: state that a training step replaces (running statistics): graph input -> new value
        self.updates: dict[str, str] = {}
        #: gradient accumulators: buffer input -> gradient tensor
        self.gradients: dict[str, str] = {}
        #: class-index inputs of losses, checked before a step runs
        self.labels: list[LabelRange] = []
        #: what a forward rule leaves for its gradient's rule: source tensor -> lowered tensor
        self.saved: dict[str, str] = {}

    @property
    def node(self) -> ir.Node:
        """The source node that is being lowered, with the names from before lowering."""
        if self._node is None:
            raise LookupError("no node has begun")
        return self._node

    def kept(self, node: ir.Node) -> tuple[str, ...]:
        """Adds an ordinary node under new output names, which are returned."""
        outputs = tuple(self._fresh(node.op_type) if name else "" for name in node.outputs)
        self.nodes.append(replace(node, outputs=outputs))
        self.shapes.infer_node(self.nodes[-1])
        return outputs

    def scan(
        self,
        body: ScanBody,
        states: Sequence[str],
        sequences: Sequence[str],
        backwards: bool = False,
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The last states and the stacked outputs of a body run along axis 0 of the sequences.

        The body may read any tensor of the graph, but must not ask for shapes: the nodes for them
        are kept for later. ``backwards`` goes from the last slice to the first; the outputs then
        still lie as the sequences do.
        """
        inputs = [self._body_input(name, 0) for name in states]
        inputs += [self._body_input(name, 1) for name in sequences]
        names = [value.name for value in inputs]
        outer, self.nodes = self.nodes, []
        try:
            last, stacked = body(names[: len(states)], names[len(states) :])
            ends = self._distinct([*last, *stacked])
            nodes = self.nodes
        finally:
            self.nodes = outer
        outputs = [ir.Value(name, self.elem_type(name), None) for name in ends]
        results = self.ops(
            "Scan",
            *states,
            *sequences,
            n=len(outputs),
            body=ir.Graph("step", nodes, inputs, outputs),
            num_scan_inputs=len(sequences),
            scan_input_directions=[int(backwards)] * len(sequences),
            scan_output_directions=[int(backwards)] * len(stacked),
        )
        return results[: len(states)], results[len(states) :]

    def _distinct(self, names: list[str]) -> list[str]:
        """Outputs of a body, each made by a node and named once: else onnxruntime mixes up their
        memory, without a word."""
        made = {name for node in self.nodes for name in node.outputs}
        distinct: list[str] = []
        for name in names:
            fresh = name in made and name not in distinct
            distinct.append(name if fresh else self.op("Identity", name))
        return distinct

    def _body_input(self, name: str, skip: int) -> ir.Value:
        """What the body of a scan sees of an outer tensor without its first ``skip`` axes."""
        dims = self.shapes.dims(name)
        value = ir.Value(
            self._fresh("in"), self.elem_type(name), None if dims is None else dims[skip:]
        )
        self.shapes.set(value.name, value.elem_type, value.dims)
        return value


#: states and slices of one step -> new states and outputs
ScanBody: TypeAlias = Callable[[Sequence[str], Sequence[str]], tuple[Sequence[str], Sequence[str]]]


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
