"""What the nodes of an optimizer graph read: which inputs of the graph, which of their tensors.

Sequences may be taken apart and put together again, and copies stand anywhere: that is undone
here, so that optimizer_spec sees optimizers that read the graph's inputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from edge_train import dtypes
from edge_train.errors import ArtifactError, UnsupportedOp
from edge_train.graph import ir
from edge_train.graph.onnx_types import tensors_of

CLIP = "InplaceClipGradNorm"
_COPIES = ("Identity", "Cast", "PassThrough")
#: ops beside the optimizers that move tensors without changing them, or make flags of flags
PLUMBING = {
    ("", "And"),
    ("", "Cast"),
    ("", "Constant"),
    ("", "Identity"),
    ("", "SequenceAt"),
    ("", "SequenceConstruct"),
    (ir.MICROSOFT, "Group"),
    (ir.MICROSOFT, "PassThrough"),
}


@dataclass(frozen=True)
class Declared:
    """The dims that a graph declares for tensor ``place`` of the input ``source``; None: for every
    tensor of it.
    """

    source: str
    place: int | None
    dims: tuple[ir.Dim, ...]


@dataclass(frozen=True)
class Operand:
    """A graph input, or those tensors of it at ``places`` (None: the whole sequence)."""

    source: str
    places: tuple[int, ...] | None = None
    clip: ir.Node | None = None  # what the tensors went through

    @property
    def label(self) -> str:
        """How messages name it."""
        return self.source if self.clip is None else self.clip.output(0)


def key(node: ir.Node) -> tuple[str, str]:
    """Domain and op, ONNX's domain as ""."""
    return "" if node.domain in ir.ONNX_DOMAINS else node.domain, node.op_type


class Operands:
    """Traces tensors back to the inputs of a graph."""

    def __init__(self, graph: ir.Graph, what: str) -> None:
        self._graph = graph
        self._what = what
        self._producers = graph.producers()
        self._types = {value.name: value.elem_type for value in graph.inputs}
        self._pending: set[str] = set()

    def of(self, name: str) -> Operand:
        """What a tensor or sequence is; UnsupportedOp for one that is computed."""
        node = self._producers.get(name)
        if node is None:
            return Operand(name)
        if name in self._pending:
            raise ArtifactError(f"{self._what}: '{name}' depends on itself")
        self._pending.add(name)
        try:
            return self._through(node, name)
        finally:
            self._pending.discard(name)

    def _through(self, node: ir.Node, name: str) -> Operand:
        if node.op_type in _COPIES:
            place = node.outputs.index(name) if node.op_type == "PassThrough" else 0
            operand = self.of(node.input(place))
            if node.op_type != "Cast" or self._keeps_type(node, operand):
                return operand
        elif node.op_type == "SequenceAt":
            return self._picked(node)
        elif node.op_type == "SequenceConstruct":
            return self._joined(node)
        elif node.op_type == CLIP:
            operand = self.of(node.input(0))
            if operand.clip is None:
                return replace(operand, clip=node)
        raise UnsupportedOp(
            f"{self._what}: '{name}' is computed by {node.describe()}; an optimizer reads the "
            "graph's inputs, whole or taken apart and put together in order"
        )

    def _keeps_type(self, node: ir.Node, operand: Operand) -> bool:
        # the tensors of a sequence are float32 here
        known = self._types.get(operand.source) if operand.places is None else dtypes.FLOAT
        return bool(node.attr("to") == (known or dtypes.FLOAT))

    def _picked(self, node: ir.Node) -> Operand:
        sequence, index = self.of(node.input(0)), self.number(node.input(1))
        if index is None or index < 0:
            raise UnsupportedOp(
                f"{self._what}: {node.describe()} has no constant index >= 0; which tensor it "
                "picks must be known"
            )
        if sequence.places is None:
            return replace(sequence, places=(index,))
        if index >= len(sequence.places):
            raise ArtifactError(
                f"{self._what}: {node.describe()} picks tensor {index} of {len(sequence.places)}"
            )
        return replace(sequence, places=(sequence.places[index],))

    def _joined(self, node: ir.Node) -> Operand:
        parts = [self.of(name) for name in node.inputs]
        places = [place for part in parts for place in part.places or ()]
        if len({(part.source, id(part.clip)) for part in parts}) != 1 or len(places) < len(parts):
            raise UnsupportedOp(f"{self._what}: {node.describe()} mixes tensors of several inputs")
        return replace(parts[0], places=tuple(places))

    def number(self, name: str) -> int | None:
        """The value of a constant of one element; None for anything else."""
        tensor, node = self._graph.initializers.get(name), self._producers.get(name)
        if tensor is None and node is not None and node.op_type == "Constant":
            value = node.attr("value_int")
            if value is not None:
                return int(value)
            tensor = node.attr("value")
        if tensor is None or tensor.array().size != 1:
            return None
        return int(tensor.array().reshape(()))


def declared(graph: ir.Graph, lists: Sequence[str], what: str) -> tuple[Declared, ...]:
    """What the graph says of the tensors of its sequences ``lists``, with any size fixed.

    Raises ArtifactError for tensors of another type than float32, which no Optimizer is given.
    """
    found = [*_of_inputs(graph, lists, what), *_of_values(graph, lists, what)]
    return tuple([one for one in found if any(isinstance(dim, int) for dim in one.dims)])


def _of_inputs(graph: ir.Graph, lists: Sequence[str], what: str) -> Iterator[Declared]:
    for value in graph.inputs:
        if value.name not in lists:
            continue
        elem_type, dims = tensors_of(value) or (value.elem_type, None)
        if elem_type not in (None, dtypes.FLOAT):
            raise ArtifactError(
                f"{what} takes {dtypes.name_of(elem_type)} tensors as its input '{value.name}', "
                "expected float32: the parameters, gradients and moments here are float32. It was "
                "made for a model with other weights: pass the optimizer_model.onnx that "
                "generate_artifacts wrote for this model"
            )
        if dims:
            yield Declared(value.name, None, dims)


def _of_values(graph: ir.Graph, lists: Sequence[str], what: str) -> Iterator[Declared]:
    """The declared tensors that are taken out of the sequences, copies of them included."""
    operands, producers = Operands(graph, what), graph.producers()
    for value in graph.value_info.values():
        node = producers.get(value.name)
        if not value.dims or node is None or key(node) not in PLUMBING:
            continue
        with suppress(ArtifactError):  # a copy of something else, which no optimizer reads
            operand = operands.of(value.name)
            if operand.source in lists and len(operand.places or ()) == 1:
                yield Declared(operand.source, (operand.places or (0,))[0], value.dims)
