"""The graphs that a Module would run for some artifacts, and the sizes of their tensors.

Made as program.py makes them, from the same files and options, without weights.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from edge_train import dtypes, session
from edge_train.counts import check_count
from edge_train.graph import ir
from edge_train.graph.lowering import Lowered, accumulating, lower
from edge_train.graph.recompute_plan import recompute_rewrite
from edge_train.graph.release import release_rewrite, with_native_ops
from edge_train.graph.roles import Roles
from edge_train.graph.shapes import Shapes
from edge_train.kernels.dispatch import fuses_graphs
from edge_train.memory.liveness import Walk, walk

#: ops whose first input is as large as their output
_SAME_SIZE = frozenset(
    {"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "ScatterElements", "ScatterND"}
)
#: a bit for each element of the node's first output, which is float32
_BITS = "/bits"
#: a gradient before it is added to its buffer
_STEP = "/step"
#: names that graph/recompute.py gives
_REPEATED = re.compile(r"recompute/(.+?)(?:/gate/\w+?(?:_\d+)?)?")


@dataclass(frozen=True)
class Choices:
    """What changes the memory of a run, as Module and Optimizer take it.

    ``trainable``: names and patterns, None for all; ``kernels``: "auto", "portable" or "fused";
    ``recompute``: "none", "auto" or patterns; ``moments``: "float32" or "8bit".
    """

    trainable: tuple[str, ...] | None = None
    kernels: str = "auto"
    recompute: str | tuple[str, ...] = "none"
    fuse_optimizer: bool = False
    moments: str = "float32"

    def module(self) -> dict[str, Any]:
        """The keyword arguments of Module that differ from its defaults."""
        words: dict[str, Any] = {}
        if self.trainable is not None:
            words["trainable"] = list(self.trainable)
        if self.kernels != "auto":
            words["kernels"] = self.kernels
        if self.recompute != "none":
            words["recompute"] = self.recompute
        if self.fuse_optimizer:
            words["fuse_optimizer"] = True
        return words

    def optimizer(self) -> dict[str, Any]:
        """The keyword arguments of Optimizer that differ from its defaults."""
        return {} if self.moments == "float32" else {"moments": self.moments}

    def notes(self) -> Iterator[str]:
        """What the choices change, in words."""
        if self.recompute != "none":
            yield "activations are made again for the backward pass: the same numbers, more time"
        if self.fuse_optimizer:
            yield "weights are updated in the backward pass: the same numbers, no gradients to read"
        if self.moments == "8bit":
            yield (
                "the optimizer's moments have 8 bits: the curve is close to that of float32, not "
                "the same"
            )


@dataclass(frozen=True)
class RunningGraph:
    """A lowered graph as onnxruntime runs it. ``lowered`` has the names and types of more tensors
    than ``running``, in which onnxruntime has fused nodes."""

    lowered: ir.Graph
    running: ir.Graph
    known: Shapes  # what lowering knew, sizes as symbols
    user_inputs: tuple[ir.Value, ...]
    gradients: Mapping[str, str]  # gradient buffer -> output
    updates: Mapping[str, str]  # running statistic -> output

    @staticmethod
    def of_training(
        model: ir.Model, names: Iterable[str], choices: Choices, adds: bool
    ) -> RunningGraph:
        """The graph of a training step; ``adds``: the one that adds to the gradients."""
        lowered = lower(model, fuses_graphs(choices.kernels))
        graph = accumulating(lowered) if adds else lowered.model
        roles = Roles.of(model.graph, set(names))
        rewrite = _recompute(lowered, roles, choices)
        if choices.fuse_optimizer:
            graph, rewrite = with_native_ops(graph), _release(lowered, roles, rewrite)
        running = session.executed_graph(graph, rewrite).graph
        return RunningGraph(
            graph.graph,
            running,
            lowered.shapes,
            roles.user_inputs,
            lowered.gradients,
            lowered.updates,
        )

    @staticmethod
    def of_evaluation(model: ir.Model, names: Iterable[str], kernels: str) -> RunningGraph:
        """The graph of an evaluation step."""
        lowered = lower(model, fuses_graphs(kernels))
        graph, inputs = lowered.model, Roles.of(model.graph, set(names)).user_inputs
        running = session.executed_graph(graph).graph
        return RunningGraph(graph.graph, running, lowered.shapes, inputs, {}, {})

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
        outputs = {value.name for value in self.running.outputs}
        ours = {*self.gradients.values(), *self.updates.values()}  # lie in memory of ours
        return walk(self.running, sizes, ours & outputs), len(made - sizes.keys())

    def fed_bytes(self, dims: Mapping[str, tuple[int, ...]]) -> int:
        """The size of what one step is fed."""
        return sum(tensor_bytes(v.elem_type, dims[v.name]) or 0 for v in self.user_inputs)

    def _sizes(self, dims: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
        shapes = Shapes()
        values = _values_of_symbols(self.user_inputs, dims)
        for graph in (self.lowered, self.running):
            bound = _with_dims(graph, dims)
            for node in bound.nodes:
                for name in node.outputs:
                    told = self.known.dims(name)
                    if told is not None:
                        told = tuple(values.get(d, d) if isinstance(d, str) else d for d in told)
                    shapes.learn(name, self.known.elem_type(name), told)
            shapes.infer(bound)
        inputs = _with_dims(self.lowered, dims).inputs
        known = {v.name: tensor_bytes(v.elem_type, v.dims) or 0 for v in inputs}
        for node in self.running.nodes:
            for name in filter(None, node.outputs):
                size = tensor_bytes(shapes.elem_type(name), shapes.dims(name))
                if size is not None:
                    known[name] = size
        for node in reversed(self.running.nodes):
            if node.op_type in _SAME_SIZE and node.output(0) in known:
                known.setdefault(node.input(0), known[node.output(0)])
        self._add_by_name(known)
        return known

    def _add_by_name(self, known: dict[str, int]) -> None:
        """Sizes that follow from the names that this package gives: of what is made again, of
        gradients before they are added up, and of the bits that an op leaves for its gradient."""
        parameters = {v.name: tensor_bytes(v.elem_type, v.dims) for v in self.lowered.outputs}
        for node in self.running.nodes:
            for name in node.outputs:
                if not name or name in known:
                    continue
                size = parameters.get(name.removesuffix(_STEP))
                if name.endswith(_BITS):
                    size = -(-known.get(node.outputs[0], 0) // 32)
                repeated = _REPEATED.fullmatch(name)
                if repeated is not None:
                    numbered, plain = repeated[1], repeated[1].rpartition("_")[0]
                    size = known.get(numbered, known.get(plain))
                if size is not None:
                    known[name] = size


def _recompute(lowered: Lowered, roles: Roles, choices: Choices) -> session.Rewrite | None:
    gradients = set(lowered.gradients.values())
    results = [v.name for v in lowered.model.graph.outputs if v.name not in gradients]
    parameters = [value.name for value in roles.parameters]
    choice = choices.recompute
    wanted = choice if isinstance(choice, str) else list(choice)
    return recompute_rewrite(lowered.model.graph, results, parameters, wanted, lowered.shapes)


def _release(lowered: Lowered, roles: Roles, before: session.Rewrite | None) -> session.Rewrite:
    gradients = {name: lowered.gradients[buffer] for name, buffer in roles.trainable.items()}
    observed = [label.observed for label in lowered.labels if label.observed]
    release = release_rewrite(gradients, lowered.results[0], observed, 0)
    return release if before is None else lambda model: release(before(model))


def _values_of_symbols(
    inputs: Sequence[ir.Value], dims: Mapping[str, tuple[int, ...]]
) -> dict[str, int]:
    return {
        symbol: size
        for value in inputs
        for symbol, size in zip(value.dims or (), dims[value.name], strict=True)
        if isinstance(symbol, str)
    }


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
                own = None if name is None else check_count(f"sizes: {name}", sizes[name], 0)
                dims.append(batch if own is None else own)
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
