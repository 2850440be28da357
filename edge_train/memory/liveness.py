"""Which tensors of a graph are in memory when it runs, node by node, as onnxruntime does it.

A tensor lives from the node that makes it to the last one that reads it. Views (Reshape) share
their input's memory, elementwise ops write over an input that nobody else reads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from edge_train.graph import ir
from edge_train.graph.order import reads_of
from edge_train.memory.bfc import Arena

_VIEWS = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity"})
_IN_PLACE = frozenset(
    {
        *("Abs", "Add", "And", "Cast", "Ceil", "Clip", "Div"),
        *("Elu", "Erf", "Exp", "FastGelu", "Floor", "Gelu", "HardSigmoid"),
        *("LeakyRelu", "Log", "Max", "Min", "Mul", "Neg", "Not"),
        *("Or", "QuickGelu", "Reciprocal", "Relu", "Selu", "Sigmoid", "Softplus"),
        *("Softsign", "Sqrt", "Sub", "Sum", "Tanh", "Xor"),
    }
)
#: take working memory of the size of their output
_DOUBLING = frozenset({"BiasGelu", "FastGelu"})
#: native/conv_general.c: padded planes of as many images as fit, and the weights packed
_CONV_ROUND = 16 << 20
_ROUNDS = 3  # the arena's chunks settle after two


@dataclass(frozen=True)
class Walk:
    """What a run of a graph holds at most, in bytes: ``live`` tensors; the arena's memory for them,
    ``arena``; ``at``: the node where it is most, ``largest``: (tensor, bytes) held there."""

    live: int
    arena: int
    at: str
    largest: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class _Event:
    """One node: memory it takes by the tensors' names, its own scratch bytes, what it frees."""

    node: ir.Node
    taken: tuple[tuple[str, int], ...]
    scratch: tuple[tuple[str, int], ...]
    freed: tuple[str, ...]


def walk(graph: ir.Graph, sizes: Mapping[str, int], bound: Collection[str] = ()) -> Walk:
    """Follows the nodes of ``graph`` in their order.

    ``sizes``: bytes of each tensor; one that is not there counts nothing. ``bound`` are outputs
    that lie in the caller's memory.
    """
    events = _events(graph, sizes, frozenset(bound))
    arena, held = Arena(), dict[str, int]()
    most, where, then = 0, "", dict[str, int]()
    for turn in range(_ROUNDS):
        now = 0
        for event in events:
            for name, size in (*event.taken, *event.scratch):
                arena.allocate(name, size)
                held[name] = size
                now += size
            if now > most and turn == 0:
                most, where, then = now, event.node.describe(), dict(held)
            for name in (*(name for name, _ in event.scratch), *event.freed):
                arena.free(name)
                now -= held.pop(name)
        for name in held:  # what a run returns is released before the next
            arena.free(name)
        held.clear()
    largest = sorted(then.items(), key=lambda item: -item[1])
    return Walk(most, arena.touched, where, tuple(largest[:10]))


def _events(graph: ir.Graph, sizes: Mapping[str, int], bound: frozenset[str]) -> list[_Event]:
    owners = _Owners(graph, sizes, bound)
    made = [owners.taken(node) for node in graph.nodes]
    last = owners.last_readers()
    dying: dict[int, list[str]] = {}
    for buffer, index in last.items():
        dying.setdefault(index, []).append(buffer)
    return [
        _Event(node, tuple(made[index]), scratch_of(node, sizes), tuple(dying.get(index, ())))
        for index, node in enumerate(graph.nodes)
    ]


def _untold(graph: ir.Graph) -> set[str]:
    """Tensors whose shape onnxruntime cannot tell before the run: those that follow from a shape
    that was chosen (a gate of graph/recompute.py). Nothing is written over another for them."""
    chosen: set[str] = set()
    untold: set[str] = set()
    for node in graph.nodes:
        if node.op_type == "Where":
            chosen.update(node.outputs)
        gated = node.op_type == "Reshape" and node.input(1) in chosen
        if gated or not untold.isdisjoint(node.inputs):
            untold.update(node.outputs)
    return untold


class _Owners:
    """Which buffer each tensor lies in: its own, that of the tensor it is a view of, or that of an
    input it is written over. Buffers are named after the tensor they were taken for."""

    def __init__(self, graph: ir.Graph, sizes: Mapping[str, int], bound: frozenset[str]) -> None:
        self._graph, self._sizes, self._bound = graph, sizes, bound
        self._results = {value.name for value in graph.outputs}
        self._left = Counter(name for node in graph.nodes for name in reads_of(node))
        self._owner: dict[str, str] = {}  # tensors in memory of the arena
        self._tenants: dict[str, list[str]] = {}  # the tensors in a buffer
        self._untold = _untold(graph)

    def taken(self, node: ir.Node) -> list[tuple[str, int]]:
        """The buffers that a node takes; nodes are asked in their order."""
        self._left.subtract(reads_of(node))
        new: list[tuple[str, int]] = []
        for name in filter(None, node.outputs):
            shared = None if name in self._results else self._shared(node, name)
            if shared is not None:
                self._settle(name, shared)
            elif name not in self._bound and self._sizes.get(name, 0) > 0:
                self._settle(name, name)
                new.append((name, self._sizes[name]))
        return new

    def _settle(self, name: str, owner: str) -> None:
        self._owner[name] = owner
        self._tenants.setdefault(owner, []).append(name)

    def _shared(self, node: ir.Node, name: str) -> str | None:
        if node.op_type in _VIEWS and name == node.outputs[0]:
            return self._owner.get(node.input(0), "")
        if node.op_type not in _IN_PLACE or name != node.outputs[0] or name in self._untold:
            return None
        for source in node.inputs[:2]:
            owner = self._owner.get(source, "")
            if owner and self._is_last(owner) and self._sizes[owner] == self._sizes.get(name):
                return owner
        return None

    def _is_last(self, owner: str) -> bool:
        """Whether nobody reads the buffer any more, under any name, and it is no result."""
        tenants = self._tenants[owner]
        return not any(self._left[name] or name in self._results for name in tenants)

    def last_readers(self) -> dict[str, int]:
        """Buffer -> the last node that reads or makes it; results are held until the end."""
        last: dict[str, int] = {}
        for index, node in enumerate(self._graph.nodes):
            for name in (*reads_of(node), *node.outputs):
                if owner := self._owner.get(name):
                    last[owner] = index
        for name in self._results:
            last.pop(self._owner.get(name, ""), None)
        return last


def scratch_of(node: ir.Node, sizes: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """Working memory that a kernel takes while it runs: (name, bytes)."""
    size = 0
    if node.op_type in _DOUBLING:
        size = sizes.get(node.output(0), 0)
    elif node.op_type == "ConvGrad" and node.domain == ir.NATIVE:
        dy, x, w = (sizes.get(node.input(index), 0) for index in range(3))
        size = min(dy + x, _CONV_ROUND) + w
    return ((f"{node.name}/scratch", size),) if size else ()
