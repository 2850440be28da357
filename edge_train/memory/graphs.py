"""The graphs that a Module would run for some artifacts, and the sizes of their tensors.

Made as program.py makes them, from the same files and options, without weights.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from edge_train import dtypes, session
from edge_train.graph import ir
from edge_train.graph.lowering import accumulating, lower
from edge_train.graph.recompute_plan import Choice, recompute_rewrite
from edge_train.graph.roles import Roles
from edge_train.graph.shapes import Shapes
from edge_train.kernels.dispatch import fuses_graphs
from edge_train.memory.liveness import Walk, walk

#: ops whose first input is as large as their output
_SAME_SIZE = frozenset(
    {"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "ScatterElements", "ScatterND"}
)
#: names that graph/recompute.py gives
_REPEATED = re.compile(r"recompute/(.+?)(?:/gate/Reshape(?:_\d+)?)?")


@dataclass(frozen=True)
class RunningGraph:
    """A lowered graph as onnxruntime runs it. ``lowered`` has the names and types of more tensors
    than ``running``, in which onnxruntime has fused nodes."""

    lowered: ir.Graph
    running: ir.Graph
    user_inputs: tuple[ir.Value, ...]
    gradients: Mapping[str, str]  # gradient buffer -> output
    updates: Mapping[str, str]  # running statistic -> output

    @staticmethod
    def of_training(
        model: ir.Model, names: Iterable[str], kernels: str, recompute: Choice, adds: bool
    ) -> RunningGraph:
        """The graph of a training step; ``adds``: the one that adds to the gradients."""
        lowered = lower(model, fuses_graphs(kernels))
        graph = accumulating(lowered) if adds else lowered.model
        roles = Roles.of(model.graph, set(names))
        rewrite = recompute_rewrite(
            lowered.model.graph,
            [v.name for v in graph.graph.outputs if v.name not in set(lowered.gradients.values())],
            [v.name for v in roles.parameters],
            recompute,
            lowered.shapes,
        )
        running = session.executed_graph(graph, rewrite).graph
        return RunningGraph(
            graph.graph, running, roles.user_inputs, lowered.gradients, lowered.updates
        )

    @staticmethod
    def of_evaluation(model: ir.Model, names: Iterable[str], kernels: str) -> RunningGraph:
        """The graph of an evaluation step."""
        graph = lower(model, fuses_graphs(kernels)).model
        inputs = Roles.of(model.graph, set(names)).user_inputs
        return RunningGraph(graph.graph, session.executed_graph(graph).graph, inputs, {}, {})

    @property
    def has_updates(self) -> bool:
        """Whether a step moves running statistics."""
        return bool(self.updates)

    def gradient_order(self, buffers: Mapping[str, str]) -> tuple[str, ...]:
        """The parameters of ``buffers`` (parameter -> gradient buffer) as gradients get ready."""
        made = {name: i for i, node in enumerate(self.running.nodes) for name in node.outputs}
        return tuple(sorted(buffers, key=lambda name: made.get(self.gradients[buffers[name]], 0)))

    def walk(self, dims: Mapping[str, tuple[int, ...]]) -> tuple[Walk, int]:
        """What a run holds for user inputs of ``dims``, and how many tensors of unknown size there
        are, which count nothing."""
        sizes = self._sizes(dims)
        made = {name for node in self.running.nodes for name in node.outputs if name}
        bound = {*self.gradients.values(), *self.updates.values()}  # lie in memory of ours
        return walk(self.running, sizes, bound), len(made - sizes.keys())

    def fed_bytes(self, dims: Mapping[str, tuple[int, ...]]) -> int:
        """The size of what one step is fed."""
        return sum(tensor_bytes(v.elem_type, dims[v.name]) or 0 for v in self.user_inputs)

    def _sizes(self, dims: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
        shapes = Shapes()
        first = Shapes.of(_with_dims(self.lowered, dims))
        for node in self.lowered.nodes:
            for name in node.outputs:
                shapes.learn(name, first.elem_type(name), first.dims(name))
        shapes.infer(_with_dims(self.running, dims))
        known = {v.name: tensor_bytes(v.elem_type, dims[v.name]) or 0 for v in self.user_inputs}
        for node in self.running.nodes:
            for name in filter(None, node.outputs):
                size = tensor_bytes(shapes.elem_type(name), shapes.dims(name))
                if size is not None:
                    known[name] = size
        for node in reversed(self.running.nodes):
            if node.op_type in _SAME_SIZE and node.output(0) in known:
                known.setdefault(node.input(0), known[node.output(0)])
        return self._with_duplicates(known)

    def _with_duplicates(self, known: dict[str, int]) -> dict[str, int]:
        """Adds what is made again: as large as the tensor it repeats, and so is a gate."""
        for node in self.running.nodes:
            for name in node.outputs:
                original = _REPEATED.fullmatch(name)
                if name in known or original is None:
                    continue
                numbered, plain = original[1], original[1].rpartition("_")[0]
                size = known.get(numbered, known.get(plain))
                if size is not None:
                    known[name] = size
        return known


def tensor_bytes(elem_type: int | None, dims: Sequence[ir.Dim] | None) -> int | None:
    """The size of a tensor, None where it is not known."""
    if dims is None or elem_type is None:
        return None
    known = [dim for dim in dims if isinstance(dim, int)]
    if len(known) != len(dims):
        return None
    width = 2 if elem_type == dtypes.BFLOAT16 else dtypes.NUMPY.get(elem_type)
    if width is None:
        return None
    return math.prod(known) * (width if isinstance(width, int) else width.itemsize)


def _with_dims(graph: ir.Graph, dims: Mapping[str, tuple[int, ...]]) -> ir.Graph:
    inputs = [replace(v, dims=dims[v.name]) if v.name in dims else v for v in graph.inputs]
    return replace(graph, inputs=inputs)


def input_dims(
    inputs: Sequence[ir.Value], batch: int, sizes: Mapping[str, int]
) -> dict[str, tuple[int, ...]]:
    """The dims of what a step is fed: axis 0 is the batch, other free axes are named in ``sizes``
    by their symbol, or as "input.axis".

    Raises ValueError for a free axis without a size, for another fixed batch and for unused names.
    """
    asked: dict[str, tuple[int, ...]] = {}
    used: set[str] = set()
    missing: list[str] = []
    for value in inputs:
        dims: list[int] = []
        for axis, dim in enumerate(value.dims or ()):
            names = [f"{value.name}.{axis}", *([dim] if isinstance(dim, str) else [])]
            name = next((name for name in names if name in sizes), None)
            if name is not None:
                used.add(name)
            if isinstance(dim, int):
                dims.append(dim)
            elif name is not None or axis == 0:
                dims.append(batch if name is None else sizes[name])
            else:
                missing.append(names[-1])
        asked[value.name] = tuple(dims)
    if missing:
        listed = ", ".join(f"{name}=..." for name in dict.fromkeys(missing))
        raise ValueError(f"sizes the model leaves open, beside the batch: say sizes: {listed}")
    if sizes.keys() - used:
        raise ValueError(f"sizes: the model has no free axis {sorted(sizes.keys() - used)}")
    return asked


def fixed_batch(inputs: Sequence[ir.Value]) -> int | None:
    """The one batch size that the graph takes, None where it takes any."""
    fixed = [v.dims[0] for v in inputs if v.dims and isinstance(v.dims[0], int)]
    return int(fixed[0]) if fixed else None
