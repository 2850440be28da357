"""What each input of a training or eval graph is: fed by the user, a parameter, a gradient buffer.

The reference decides by names (reference/checkpoint.md, section 10); here the checkpoint's names,
the accumulators and the order of the inputs are checked against each other before anything runs.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from edge_train.graph import ir

GRADIENT_BUFFER = "_grad.accumulation.buffer"


def accumulators(graph: ir.Graph) -> list[ir.Node]:
    """The nodes that add a gradient to its buffer, for as long as the reset flag is not set."""
    return [
        node
        for node in graph.nodes
        if node.op_type == "InPlaceAccumulatorV2" and node.domain == ir.MICROSOFT
    ]


@dataclass(frozen=True)
class Roles:
    """The inputs of a graph by role; ``trainable``: parameter -> its gradient buffer input."""

    user_inputs: tuple[ir.Value, ...]
    parameters: tuple[ir.Value, ...]
    trainable: dict[str, str]
    unknown: tuple[str, ...]  # parameters by their place in the graph, missing from the state

    @staticmethod
    def of(graph: ir.Graph, names: Collection[str]) -> Roles:
        """Sorts the inputs of ``graph`` for a state with parameters ``names``."""
        added = accumulators(graph)
        buffers = {node.input(0) for node in added}
        flags = {node.input(2) for node in added}
        trainable = {_parameter_of(buffer): buffer for buffer in buffers}
        plain = [v for v in graph.inputs if v.name not in buffers and v.name not in flags]
        is_parameter = [v.name in names or v.name in trainable for v in plain]
        # parameters follow the user's inputs: one past the first known parameter is a parameter
        first = is_parameter.index(True) if True in is_parameter else len(plain)
        parameters = tuple(plain[first:])
        unknown = tuple(v.name for v in parameters if v.name not in names)
        ordered = {v.name: trainable[v.name] for v in parameters if v.name in trainable}
        return Roles(tuple(plain[:first]), parameters, ordered, unknown)


def _parameter_of(buffer: str) -> str:
    return buffer.removesuffix(GRADIENT_BUFFER)
