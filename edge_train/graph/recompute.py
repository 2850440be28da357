"""Activation recompute: forward tensors are made again for the backward pass instead of being kept.

A plain duplicate of a forward node does not help: the runtime is free to run it early, or to merge
it with the original. So what a duplicate reads passes through a gate that opens when the gradient
arrives: a Reshape to the tensor's own shape, where that shape is chosen between two equal ones by a
bit of the gradient. It copies no data, and is exact for every value, NaN and infinity too.

Random numbers are not drawn again: the mask of a Dropout, or its seed, is kept, and its output
follows from it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from edge_train import dtypes
from edge_train.graph import ir
from edge_train.graph.passes import all_names, fresh_name, outer_reads, reading

_RANDOM = frozenset(
    {
        *("Bernoulli", "Dropout", "Multinomial"),
        *("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
    }
)
_KNOWN_DOMAINS = frozenset({*ir.ONNX_DOMAINS, ir.MICROSOFT, "edge_train"})


@dataclass(frozen=True)
class Segment:
    """Forward nodes (by place in the graph) and which of their outputs are made again."""

    nodes: frozenset[int]
    dropped: frozenset[str]


class ForwardPart:
    """The forward nodes of a lowered training graph, and who reads what they make."""

    def __init__(self, graph: ir.Graph, results: Collection[str], parameters: Collection[str]):
        self.graph = graph
        self.results = frozenset(results)
        self.reads = [outer_reads(node) for node in graph.nodes]
        needed, forward = set(results), []
        for index in range(len(graph.nodes) - 1, -1, -1):
            if needed.intersection(filter(None, graph.nodes[index].outputs)):
                forward.append(index)
                needed |= self.reads[index]
        self.forward = forward[::-1]
        self.made_at = {n: i for i, node in enumerate(graph.nodes) for n in node.outputs if n}
        #: every tensor of the graph itself, those inside bodies left out
        self.outer = self.made_at.keys() | {value.name for value in graph.inputs}
        inside = set(self.forward)
        self.backward = [i for i in range(len(graph.nodes)) if i not in inside]
        self.read_by_backward = set().union(*(self.reads[i] for i in self.backward))
        self.constant = self._constant(set(parameters) | set(graph.initializers))

    def _constant(self, constant: set[str]) -> frozenset[str]:
        """What follows from parameters and constants alone: no activation."""
        for index in self.forward:
            if self.reads[index] <= constant:
                constant.update(filter(None, self.graph.nodes[index].outputs))
        return frozenset(constant)

    def last_forward_read(self) -> dict[str, int]:
        """Tensor -> the last forward node that reads it; outputs are read by the world at last."""
        last = {name: index for index in self.forward for name in self.reads[index]}
        last.update(dict.fromkeys(self.results, len(self.graph.nodes)))
        return last

    def can_repeat(self, index: int) -> bool:
        """Whether running a forward node again gives the same bits."""
        node = self.graph.nodes[index]
        return node.domain in _KNOWN_DOMAINS and not _draws(node)


def _draws(node: ir.Node) -> bool:
    if node.op_type in _RANDOM or "Dropout" in node.op_type:
        return True
    return any(_draws(inner) for body in ir.subgraphs(node) for inner in body.nodes)


@dataclass
class _Writer:
    """New names, constants and nodes."""

    names: set[str]
    nodes: list[ir.Node] = field(default_factory=list)
    constants: dict[str, ir.Tensor] = field(default_factory=dict)

    def fresh(self, stem: str) -> str:
        return fresh_name(f"recompute/{stem}", self.names)

    def op(
        self, op_type: str, *inputs: str, stem: str, to: int | None = None, domain: str = ""
    ) -> str:
        output = self.fresh(f"{stem}/{op_type}")
        self.nodes.append(ir.make_node(op_type, inputs, [output], output, domain, to=to))
        return output

    def ints(self, *values: int) -> str:
        return self.const("ints", np.array(values, np.int64))

    def const(self, stem: str, value: np.ndarray) -> str:
        raw = value.tobytes()
        for name, tensor in self.constants.items():
            same = tensor.dims == value.shape and tensor.raw == raw
            if same and tensor.data_type == dtypes.number_of(value.dtype):
                return name
        name = self.fresh(stem)
        self.constants[name] = ir.Tensor.of(name, value)
        return name


def recompute(part: ForwardPart, segments: Sequence[Segment]) -> ir.Graph:
    """The graph that makes the dropped tensors of each segment again when its gradient arrives.

    A segment for which no such gradient is found stays as it is.
    """
    writer = _Writer(all_names(part.graph))
    instead: dict[str, str] = {}
    added: dict[int, list[ir.Node]] = {}
    arrivals = _Arrivals(part, segments)
    for number, segment in enumerate(segments):
        found = arrivals.of(number)
        if found is None:
            continue
        gradient, reader = found
        writer.nodes = []
        instead |= _Duplicate(part, segment, gradient, writer).made()
        added.setdefault(reader, []).extend(writer.nodes)
    if not instead:
        return part.graph
    forward = set(part.forward)
    nodes: list[ir.Node] = []
    for index, node in enumerate(part.graph.nodes):
        nodes += added.get(index, [])
        nodes.append(node if index in forward else reading(node, instead))
    constants = {**part.graph.initializers, **writer.constants}
    return replace(part.graph, nodes=in_order(nodes), initializers=constants)


class _Arrivals:
    """For each segment the gradient that arrives just before its dropped tensors are needed."""

    def __init__(self, part: ForwardPart, segments: Sequence[Segment]) -> None:
        self._part = part
        self._ends = [max(segment.nodes) for segment in segments]
        self._owner = {name: i for i, segment in enumerate(segments) for name in segment.dropped}
        #: backward tensor -> the segments it needs, and the last forward node it comes from
        self._needs: dict[str, tuple[frozenset[int], int]] = {}
        self._first: dict[int, tuple[str, int]] = {}
        for index in part.backward:
            self._walk(index)
        self._leave_cycles()

    def of(self, number: int) -> tuple[str, int] | None:
        """The gradient and the place of its first reader; None if there is none."""
        return self._first.get(number)

    def _leave_cycles(self) -> None:
        """A gate waits for all that its gradient needs: of segments waiting in a circle, one is
        left as it is."""
        waits: dict[int, frozenset[int]] = {}
        for number, (gradient, _) in sorted(self._first.items(), reverse=True):
            reached, ahead = set(), list(self._needs[gradient][0])
            while ahead:
                other = ahead.pop()
                if other not in reached:
                    reached.add(other)
                    ahead += waits.get(other, ())
            if number in reached:
                del self._first[number]
            else:
                waits[number] = self._needs[gradient][0]

    def _walk(self, index: int) -> None:
        part = self._part
        needs: set[int] = set()
        last = -1
        for name in part.reads[index]:
            segments, place = self._needs.get(name, (frozenset(), part.made_at.get(name, -1)))
            needs |= segments
            if name in self._owner:
                needs.add(self._owner[name])
            last = max(last, place)
        for number in needs - self._first.keys():
            for name in part.graph.nodes[index].inputs:
                if self._arrives(name, number):
                    self._first[number] = name, index
                    break
        told = frozenset(needs), last
        self._needs.update((name, told) for name in part.graph.nodes[index].outputs if name)

    def _arrives(self, name: str, number: int) -> bool:
        """Made by the backward pass, without the segment, after what follows it."""
        if name not in self._needs:
            return False
        segments, last = self._needs[name]
        return number not in segments and last > self._ends[number]


class _Duplicate:
    """The second making of one segment's dropped tensors."""

    def __init__(self, part: ForwardPart, segment: Segment, gradient: str, writer: _Writer) -> None:
        self._part = part
        self._segment = segment
        self._writer = writer
        self._gradient = gradient
        self._bit = ""
        self._gated: dict[str, str] = {}
        self._again: dict[str, str] = {}

    def made(self) -> dict[str, str]:
        """Dropped tensor -> its duplicate; the nodes are with the writer."""
        part, nodes = self._part, self._part.graph.nodes
        wanted = set(self._segment.dropped)
        repeated = []
        for index in sorted(self._segment.nodes, reverse=True):
            if wanted.intersection(filter(None, nodes[index].outputs)):
                repeated.append(index)
                wanted |= self._repeatable_inputs(index)
        for index in reversed(repeated):
            if part.can_repeat(index):
                self._repeat(nodes[index])
            elif _is_seeded(nodes[index]):
                self._from_seed(nodes[index])
            else:
                self._from_mask(nodes[index])
        return {name: self._again[name] for name in self._segment.dropped if name in self._again}

    def _repeatable_inputs(self, index: int) -> set[str]:
        """What has to be made again for a node: what the segment makes and nobody keeps."""
        part = self._part
        made = {n for n in part.reads[index] if part.made_at.get(n, -1) in self._segment.nodes}
        return {n for n in made - part.constant if _is_repeated(part, self._segment, n)}

    def _repeat(self, node: ir.Node) -> None:
        names = {
            name: self._source(name)
            for name in outer_reads(node) & self._part.outer
            if name not in self._part.constant
        }
        outputs = tuple([self._writer.fresh(n) if n else "" for n in node.outputs])
        twin = reading(node, names)
        name = self._writer.fresh(node.name or node.op_type)
        self._writer.nodes.append(replace(twin, name=name, outputs=outputs))
        self._again.update(zip(filter(None, node.outputs), filter(None, outputs), strict=True))

    def _from_mask(self, node: ir.Node) -> None:
        """What a Dropout in training mode gave: (mask x) / (1 - ratio), as onnxruntime has it."""
        write, y = self._writer, node.output(0)
        x = self._source(node.input(0))
        one = write.const("one", np.array(1, np.float32))
        ratio = node.input(1) or write.const("ratio", np.array(0.5, np.float32))
        rest = write.op("Sub", one, ratio, stem=y)
        mask = write.op("Cast", self._source(node.output(1)), stem=y, to=dtypes.FLOAT)
        self._again[y] = write.op("Div", write.op("Mul", mask, x, stem=y), rest, stem=y)

    def _from_seed(self, node: ir.Node) -> None:
        """What our own Dropout gave, by the kernel of its gradient."""
        y, x = node.output(0), self._source(node.input(0))
        inputs = (x, node.output(1), *node.inputs[1:])
        self._again[y] = self._writer.op("SeededDropout", *inputs, stem=y, domain=ir.NATIVE)

    def _source(self, name: str) -> str:
        """What a duplicate reads for a tensor: another duplicate, or the original behind a gate."""
        if name in self._again:
            return self._again[name]
        if name not in self._gated:
            self._gated[name] = self._gate(name)
        return self._gated[name]

    def _gate(self, name: str) -> str:
        write = self._writer
        if not self._bit:
            flat = write.op("Reshape", self._gradient, write.ints(-1), stem=name)
            first = write.op("Slice", flat, write.ints(0), write.ints(1), stem=name)
            self._bit = write.op("Cast", first, stem=name, to=dtypes.BOOL)
        shape = write.op("Shape", name, stem=name)
        chosen = write.op("Where", self._bit, shape, shape, stem=name)
        return write.op("Reshape", name, chosen, stem=f"{name}/gate")


def _is_repeated(part: ForwardPart, segment: Segment, name: str) -> bool:
    """Whether a tensor that a segment makes is made again, rather than read where it is kept."""
    if name in segment.dropped:
        return True
    index = part.made_at[name]
    node = part.graph.nodes[index]
    if name in part.results or name in part.read_by_backward:
        return False  # kept in any case
    return part.can_repeat(index) or follows_from_draw(part, node, name)


def follows_from_draw(part: ForwardPart, node: ir.Node, name: str) -> bool:
    """Whether a tensor is the output of a Dropout whose seed, or in training mode whose mask, is
    there."""
    if _is_seeded(node):
        return name == node.output(0)
    if node.op_type != "Dropout" or node.domain not in ir.ONNX_DOMAINS or name != node.output(0):
        return False
    mode = part.graph.initializers.get(node.input(2))
    return bool(node.output(1)) and mode is not None and bool(mode.array().all())


def _is_seeded(node: ir.Node) -> bool:
    return node.op_type == "DrawnDropout" and node.domain == ir.NATIVE and bool(node.output(1))


def in_order(nodes: Sequence[ir.Node]) -> list[ir.Node]:
    """The nodes each after those it reads, else in the order given."""
    makers = {name: i for i, node in enumerate(nodes) for name in node.outputs if name}
    before = [[makers[n] for n in sorted(outer_reads(node)) if n in makers] for node in nodes]
    done: set[int] = set()
    ordered: list[ir.Node] = []
    for start in range(len(nodes)):
        stack = [start]
        while stack:
            index = stack[-1]
            waiting = [i for i in before[index] if i not in done]
            if index in done or not waiting:
                stack.pop()
                if index not in done:
                    done.add(index)
                    ordered.append(nodes[index])
            else:
                stack += waiting
    return ordered


def droppable(part: ForwardPart, name: str, sizes: Mapping[str, int], least: int) -> bool:
    """Whether dropping a forward tensor saves memory that the backward pass would hold."""
    index = part.made_at.get(name, -1)
    if name not in part.read_by_backward or name in part.results or name in part.constant:
        return False
    if sizes.get(name, 0) < max(least, 1):
        return False
    node = part.graph.nodes[index]
    return part.can_repeat(index) or follows_from_draw(part, node, name)


def outputs_of(part: ForwardPart, indices: Iterable[int]) -> list[str]:
    """What the nodes make."""
    return [name for index in indices for name in part.graph.nodes[index].outputs if name]
