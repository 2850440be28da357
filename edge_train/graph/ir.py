"""The graph as plain data: what onnx_codec reads and writes and what every pass works on.

Values are immutable (tensors, attributes, nodes, value infos); a Graph is a mutable collection of
them. ``extra`` holds the protobuf bytes of fields that are not modelled here, so that a model read
and written unchanged is the same message.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from edge_train import dtypes
from edge_train.errors import ArtifactError

#: domains that all mean "the ONNX operator set"
ONNX_DOMAINS = ("", "ai.onnx")
MICROSOFT = "com.microsoft"
#: the domain of our own kernels, native/kernels.c
NATIVE = "edge_train"

# AttributeProto.AttributeType
FLOAT, INT, STRING, TENSOR, GRAPH, FLOATS, INTS, STRINGS, TENSORS, GRAPHS = range(1, 11)

#: a dimension: a size, a symbol, or None when nothing is known
Dim: TypeAlias = int | str | None


@dataclass(frozen=True)
class Tensor:
    """A constant: little-endian ``raw`` bytes, or ``strings``, or the place in an external file."""

    name: str
    data_type: int
    dims: tuple[int, ...]
    raw: bytes | None
    field: str = (
        "raw_data"  # the TensorProto field the data stood in; the writer puts it back there
    )
    external: tuple[tuple[str, str], ...] = ()  # TensorProto.external_data entries
    extra: bytes = b""
    strings: tuple[bytes, ...] | None = None  # the items of a string tensor

    @staticmethod
    def of(name: str, array: np.ndarray) -> Tensor:
        """A tensor with the values of ``array``."""
        little = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False)
        return Tensor(name, dtypes.number_of(array.dtype), tuple(array.shape), little.tobytes())

    def array(self) -> np.ndarray:
        """The values as a read-only array; ArtifactError for a type NumPy lacks, for external
        data, and where the bytes do not fill the dims."""
        if self.raw is None or self.data_type not in dtypes.NUMPY:
            what = dtypes.name_of(self.data_type)
            if self.external:
                what = "external data that was not read in"
            raise ArtifactError(f"tensor '{self.name}' holds {what}, which has no in-memory array")
        dtype = dtypes.NUMPY[self.data_type].newbyteorder("<")
        if min(self.dims, default=0) < 0 or math.prod(self.dims) * dtype.itemsize != len(self.raw):
            raise ArtifactError(
                f"tensor '{self.name}' of {dtype.name} with dims {list(self.dims)} has "
                f"{len(self.raw)} bytes of data, which do not fill it: the model is damaged"
            )
        return np.frombuffer(self.raw, dtype).reshape(self.dims)


@dataclass(frozen=True)
class Attribute:
    """A node attribute; ``value``: a float, int, bytes, Tensor, Graph or a tuple of one of them."""

    name: str
    type: int
    value: Any
    extra: bytes = b""
    absent: tuple[str, ...] = ()  # AttributeProto fields that the file left out, being at default

    @staticmethod
    def of(name: str, value: Any) -> Attribute:
        """An attribute whose type follows from the Python value (str becomes bytes)."""
        if isinstance(value, str):
            value = value.encode()
        if isinstance(value, (list, tuple)):
            value = tuple(item.encode() if isinstance(item, str) else item for item in value)
        return Attribute(name, _attribute_type(value), value)


def _attribute_type(value: Any) -> int:
    kinds = ((int, INT), (float, FLOAT), (bytes, STRING), (Tensor, TENSOR), (Graph, GRAPH))
    for kind, number in kinds:
        if isinstance(value, kind):
            return number
    if isinstance(value, tuple):
        if not value:
            return INTS
        return _attribute_type(value[0]) + (FLOATS - FLOAT)
    raise TypeError(f"no attribute type for a value of {type(value).__name__}")


@dataclass(frozen=True)
class Node:
    """One operator call. Empty strings stand for omitted inputs and outputs."""

    op_type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    name: str = ""
    domain: str = ""
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    extra: bytes = b""

    def attr(self, name: str, default: Any = None) -> Any:
        """The attribute's value, strings as str, or ``default`` where it is absent."""
        if name not in self.attributes:
            return default
        value = self.attributes[name].value
        try:
            return value.decode() if isinstance(value, bytes) else value
        except UnicodeDecodeError:
            where = f"attribute '{name}' of {self.describe()}"
            raise ArtifactError(f"{where} is not UTF-8 text: {value!r}") from None

    def input(self, index: int) -> str:
        """The name of input ``index``, "" where it is omitted or beyond the list."""
        return self.inputs[index] if index < len(self.inputs) else ""

    def output(self, index: int) -> str:
        """The name of output ``index``, "" where it is omitted or beyond the list."""
        return self.outputs[index] if index < len(self.outputs) else ""

    def describe(self) -> str:
        """How messages name a node: op, name, domain."""
        return f"{self.op_type} '{self.name}' (domain '{self.domain or 'ai.onnx'}')"


@dataclass(frozen=True)
class Value:
    """The declared type of a tensor. ``dims`` is None when the rank is unknown.

    ``type_proto`` keeps the TypeProto as read (dimension denotations, sequence and map types).
    """

    name: str
    elem_type: int | None
    dims: tuple[Dim, ...] | None
    type_proto: bytes | None = None
    extra: bytes = b""


@dataclass
class Graph:
    """Nodes in execution order with the tensors they start from and end in."""

    name: str = ""
    nodes: list[Node] = field(default_factory=list)
    inputs: list[Value] = field(default_factory=list)
    outputs: list[Value] = field(default_factory=list)
    initializers: dict[str, Tensor] = field(default_factory=dict)
    value_info: dict[str, Value] = field(default_factory=dict)
    extra: bytes = b""

    def producers(self) -> dict[str, Node]:
        """Tensor name -> the node that makes it."""
        return {name: node for node in self.nodes for name in node.outputs if name}

    def consumers(self) -> dict[str, list[Node]]:
        """Tensor name -> the nodes that read it directly."""
        readers: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(filter(None, node.inputs)):
                readers.setdefault(name, []).append(node)
        return readers


@dataclass
class Model:
    """A graph with the operator sets it is written in."""

    graph: Graph
    ir_version: int
    opset_imports: list[tuple[str, int]]
    extra: bytes = b""
    import_extra: dict[str, bytes] = field(default_factory=dict)  # by domain of the import
    functions: tuple[bytes, ...] = ()  # FunctionProto messages, as read

    def opset(self, domain: str = "") -> int | None:
        """The imported version of a domain; None if it is not imported."""
        names = ONNX_DOMAINS if domain in ONNX_DOMAINS else (domain,)
        versions = [version for name, version in self.opset_imports if name in names]
        return max(versions, default=None)


def make_node(
    op_type: str,
    inputs: Iterable[str],
    outputs: Iterable[str],
    name: str = "",
    domain: str = "",
    **attributes: Any,
) -> Node:
    """A node with attributes given as Python values; None leaves an attribute out."""
    table = {
        key: Attribute.of(key, value) for key, value in attributes.items() if value is not None
    }
    return Node(op_type, tuple(inputs), tuple(outputs), name, domain, table)


def subgraphs(node: Node) -> Iterator[Graph]:
    """The graphs in a node's attributes (bodies of If, Loop, Scan)."""
    for attribute in node.attributes.values():
        if attribute.type == GRAPH:
            yield attribute.value
        elif attribute.type == GRAPHS:
            yield from attribute.value
