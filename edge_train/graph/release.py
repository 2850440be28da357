"""Optimizer in backward: each gradient is handed over as soon as nobody needs its weight any more.

A Release node (native/release.c) calls the optimizer, which changes the weight in place, in the
memory that the graph reads. That is right only after every node that reads the weight has run: so
Release waits, by edges of the graph, for the results of all of them that do not come before the
gradient anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from edge_train import dtypes
from edge_train.graph import ir
from edge_train.graph.passes import all_names, fresh_name, outer_reads

#: what these ops make may be the memory of what they read
_VIEWS = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity"})

#: what the outputs of Release nodes are called, before their number
DONE = "edge_train/released"


def release_rewrite(
    gradients: Mapping[str, str], loss: str, first: Sequence[str], owner: int
) -> Callable[[ir.Model], ir.Model]:
    """What turns an optimized training graph into one that releases its gradients.

    ``gradients``: parameter -> its gradient's tensor, in the order of the numbers that the
    receiver is called with. The gradients are no outputs any more. ``loss`` and the tensors
    ``first`` are there before the first of them; ``owner`` is handed through.
    """

    def rewrite(model: ir.Model) -> ir.Model:
        graph = model.graph
        loss_read, cast = _as_float(graph, loss)
        gone = set(gradients.values())
        readers = _Readers(graph.nodes)
        released = []
        for index, (name, gradient) in enumerate(gradients.items()):
            gates = readers.results_beside(name, gradient)
            node = ir.make_node(
                "Release",
                [gradient, loss_read, *first, *gates],
                [f"{DONE}/{index}"],
                f"{DONE}/{name}",
                ir.NATIVE,
                owner=owner,
                index=index,
            )
            released.append(node)
        done = [ir.Value(node.outputs[0], dtypes.FLOAT, (1,)) for node in released]
        kept = [value for value in graph.outputs if value.name not in gone]
        nodes = [*graph.nodes, *cast, *released]
        return replace(model, graph=replace(graph, nodes=nodes, outputs=[*kept, *done]))

    return rewrite


def with_native_ops(model: ir.Model) -> ir.Model:
    """The model with the domain of our own ops among its imports."""
    if any(domain == ir.NATIVE for domain, _ in model.opset_imports):
        return model
    return replace(model, opset_imports=[*model.opset_imports, (ir.NATIVE, 1)])


def _as_float(graph: ir.Graph, loss: str) -> tuple[str, list[ir.Node]]:
    """The loss as float32, and the node that makes it so."""
    kind = next((value.elem_type for value in graph.outputs if value.name == loss), None)
    if kind == dtypes.FLOAT:
        return loss, []
    name = fresh_name("edge_train/loss", all_names(graph))
    return name, [ir.make_node("Cast", [loss], [name], name, to=dtypes.FLOAT)]


class _Readers:
    """Which nodes read a parameter, and which of them come before a gradient in any order."""

    def __init__(self, nodes: Sequence[ir.Node]) -> None:
        self._nodes = nodes
        self._makers = {n: i for i, node in enumerate(nodes) for n in node.outputs if n}
        self._reads = [outer_reads(node) for node in nodes]
        self._of: dict[str, list[int]] = {}
        for index, names in enumerate(self._reads):
            for name in names:
                self._of.setdefault(name, []).append(index)

    def results_beside(self, parameter: str, gradient: str) -> list[str]:
        """One output of every reader that the gradient does not wait for already."""
        before = self._ancestors(gradient)
        late = [index for index in self._readers(parameter) if index not in before]
        return [next(filter(None, self._nodes[index].outputs)) for index in late]

    def _readers(self, name: str) -> Iterable[int]:
        """The readers of a tensor and of what may lie in its memory."""
        found: dict[int, None] = {}
        views = [name]
        while views:
            for index in self._of.get(views.pop(), ()):
                if index not in found:
                    found[index] = None
                    node = self._nodes[index]
                    if node.op_type in _VIEWS:
                        views += filter(None, node.outputs)
        return found

    def _ancestors(self, name: str) -> set[int]:
        """The nodes that a tensor needs."""
        found: set[int] = set()
        ahead = [name]
        while ahead:
            index = self._makers.get(ahead.pop())
            if index is not None and index not in found:
                found.add(index)
                ahead += self._reads[index]
        return found
