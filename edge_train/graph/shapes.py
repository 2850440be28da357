"""What is known about a graph's tensors: element type, rank, sizes.

Declared types come first; shape_rules fills in what they leave open, walking the nodes forward.
Rules never fail: what cannot be told stays None.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TypeAlias

import numpy as np

from edge_train import dtypes
from edge_train.errors import ArtifactError
from edge_train.graph import (  # noqa: F401 (importing them registers their rules)
    ir,
    shape_rules_control,
    shape_rules_frozen,
    shape_rules_layers,
    shape_rules_layout,
    shape_rules_native,
    shape_rules_reductions,
)
from edge_train.graph.shape_rules import RULES

Dims: TypeAlias = "tuple[ir.Dim, ...]"

_MAX_FACTORS = 8  # float vectors up to this size may be factors of Resize
#: what a rule may raise on a node that lacks an input or attribute, or has one of another kind
_MALFORMED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)

_MAX_CONTENTS = 64  # integer tensors up to this size may be shapes, axes, pads


class Shapes:
    """Element types and dims by tensor name; those inside subgraphs are not included."""

    def __init__(self) -> None:
        self._types: dict[str, int] = {}
        self._dims: dict[str, Dims] = {}
        self._contents: dict[str, Dims] = {}
        self._floats: dict[str, tuple[float, ...]] = {}
        self._producers: dict[str, ir.Node] = {}

    @classmethod
    def of(cls, source: ir.Model | ir.Graph, outer: Shapes | None = None) -> Shapes:
        """Everything that the declared types and forward inference tell about a graph.

        ``outer`` knows the tensors around a subgraph.
        """
        shapes = cls()
        if outer is not None:
            for table in ("_types", "_dims", "_contents", "_floats", "_producers"):
                getattr(shapes, table).update(getattr(outer, table))
        shapes.infer(source.graph if isinstance(source, ir.Model) else source)
        return shapes

    def dims(self, name: str) -> Dims | None:
        """A size, a symbol or None for each axis; None if the rank is not known."""
        return self._dims.get(name)

    def rank(self, name: str) -> int | None:
        """The number of axes, None if not known."""
        dims = self._dims.get(name)
        return None if dims is None else len(dims)

    def elem_type(self, name: str) -> int | None:
        """The ONNX data type, None if not known."""
        return self._types.get(name)

    def contents(self, name: str) -> Dims | None:
        """The values of a small integer tensor (a scalar counts as one value), flat, with symbols
        where they are sizes of tensors; None if not known."""
        return self._contents.get(name)

    def floats(self, name: str) -> tuple[float, ...] | None:
        """The values of a float32 constant that may hold a factor for each axis; else None."""
        return self._floats.get(name)

    def producer(self, name: str) -> ir.Node | None:
        """The node that makes a tensor, as far as inference has come."""
        return self._producers.get(name)

    def set(self, name: str, elem_type: int | None, dims: Sequence[ir.Dim] | None) -> None:
        """Replaces what is known about a tensor; None forgets it."""
        self._types.pop(name, None)
        self._dims.pop(name, None)
        self.learn(name, elem_type, dims)

    def set_contents(self, name: str, values: Sequence[ir.Dim]) -> None:
        """Says what a small integer tensor holds."""
        if len(values) <= _MAX_CONTENTS:
            self._contents[name] = tuple(values)

    def learn(self, name: str, elem_type: int | None, dims: Sequence[ir.Dim] | None) -> None:
        """Adds to what is known; a known size, and a known rank, is not overruled."""
        if not name:
            return
        if elem_type and name not in self._types:
            self._types[name] = elem_type
        if dims is None:
            return
        new = tuple([_known(dim) for dim in dims])
        old = self._dims.get(name, new)
        if len(old) == len(new):
            self._dims[name] = tuple([_sharper(a, b) for a, b in zip(old, new, strict=True)])

    def learn_tensor(self, name: str, tensor: ir.Tensor) -> None:
        """Adds what a constant tells."""
        self.learn(name, tensor.data_type, tensor.dims)
        small = tensor.raw is not None and len(tensor.raw) <= 8 * _MAX_CONTENTS
        if small and tensor.data_type in (dtypes.INT32, dtypes.INT64):
            try:
                self.set_contents(name, tensor.array().astype(np.int64).ravel().tolist())
            except ArtifactError:  # damaged; whoever needs the values reports it
                return
        if tensor.data_type == dtypes.FLOAT and len(tensor.dims) == 1 and tensor.raw is not None:
            self._learn_floats(name, tensor)

    def _learn_floats(self, name: str, tensor: ir.Tensor) -> None:
        if tensor.dims[0] > _MAX_FACTORS:
            return
        with suppress(ArtifactError):
            self._floats[name] = tuple(tensor.array().tolist())

    def infer(self, graph: ir.Graph) -> None:
        """Learns the declared types of a graph, then those of its nodes' outputs in order."""
        for name, tensor in graph.initializers.items():  # what is there, whatever is declared
            self.learn_tensor(name, tensor)
        for value in (*graph.inputs, *graph.outputs, *graph.value_info.values()):
            self.learn(value.name, value.elem_type, value.dims)
        for node in graph.nodes:
            self.infer_node(node)

    def infer_node(self, node: ir.Node) -> None:
        """Learns what a node tells about its outputs."""
        self._producers.update((name, node) for name in node.outputs if name)
        rule = RULES.get(node.op_type)
        if rule is None:
            return
        try:
            facts = rule(self, node)
        except (*_MALFORMED, ArtifactError):
            return  # a malformed node tells nothing here; onnxruntime reports it
        for name, fact in zip(node.outputs, facts, strict=False):
            self.learn(name, *fact)


def _known(dim: ir.Dim) -> ir.Dim:
    """Exporters also write -1 and "" for an unknown size."""
    unknown = dim < 0 if isinstance(dim, int) else not dim
    return None if unknown else dim


def _sharper(old: ir.Dim, new: ir.Dim) -> ir.Dim:
    if isinstance(old, int) or new is None:
        return old
    return new if isinstance(new, int) or old is None else old
