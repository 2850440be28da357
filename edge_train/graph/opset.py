"""Raises a model of ONNX opset 7-20 to opset 21, the one that lowering works on.

opset_rules holds the op changes; an op without a rule means the same at every opset in between,
where only types were added. Opsets 22-25 come back to 21, so that onnxruntime 1.20 loads what
lowering emits: they changed nothing either, save for the new ops and attributes listed here, and
the sizes of pools in ceil_mode.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from edge_train.errors import ArtifactError, UnsupportedOp
from edge_train.graph import ir, opset_rules_old  # noqa: F401 (importing it registers its rules)
from edge_train.graph.opset_rules import NEWER, RULES, Unraisable
from edge_train.graph.passes import all_names, fresh_name, outer_reads, with_bodies
from edge_train.graph.shapes import Shapes

TARGET = 21
OLDEST, NEWEST = 7, 25
IR_VERSION = 10

# ops and attributes that opset 21 lacks and has no words for
_NEW_OPS = frozenset({"Attention", "RotaryEmbedding", "TensorScatter"})
_NEW_ATTRIBUTES = {
    "Cast": "round_mode",
    "CastLike": "round_mode",
    "QuantizeLinear": "precision",
    "DequantizeLinear": "output_dtype",
}


def raise_opset(model: ir.Model) -> ir.Model:
    """The same computation at ONNX opset 21, IR version at most 10; other domains are untouched.

    ArtifactError for an opset outside 7-25, UnsupportedOp listing every node without equivalent.
    """
    version = model.opset()
    if version is None or version == TARGET:
        return replace(model, ir_version=min(model.ir_version, IR_VERSION))
    _check_version(model, version)
    names = all_names(model.graph)
    scope = Scope(model.graph, version, None, names, [])
    graph = scope.raised()
    if scope.problems:
        raise UnsupportedOp(
            f"nodes of this opset {version} model that opset {TARGET} cannot express:\n  "
            + "\n  ".join(scope.problems)
        )
    imports = [item for item in model.opset_imports if item[0] not in ir.ONNX_DOMAINS]
    # IR versions below 4 want every initializer among the inputs; the new constants are not
    return replace(
        model, graph=graph, ir_version=IR_VERSION, opset_imports=[("", TARGET), *imports]
    )


def _check_version(model: ir.Model, version: int) -> None:
    name = model.graph.name
    if version < OLDEST:
        raise ArtifactError(
            f"graph '{name}': opset {version} is older than {OLDEST}: convert it with "
            f"onnx.version_converter first"
        )
    if version > NEWEST:
        raise ArtifactError(
            f"graph '{name}': opset {version} is newer than {NEWEST}, the newest known here: "
            f"export the model at opset {TARGET}"
        )
    if model.functions:
        raise ArtifactError(
            f"graph '{name}' at opset {version} has model-local functions, which cannot be raised "
            f"to opset {TARGET}: inline them with onnx.inliner first"
        )


class Scope:
    """One graph on its way to the target opset: what a rule asks and writes with.

    New constants go to the outermost graph; subgraphs see them.
    """

    def __init__(
        self,
        graph: ir.Graph,
        version: int,
        outer: Scope | None,
        names: set[str],
        problems: list[str],
    ) -> None:
        self.graph, self.version, self._outer = graph, version, outer
        self.problems = problems
        self._names = names
        self._constants: dict[tuple[str, tuple[int, ...], bytes], ir.Tensor] = {}

    @cached_property
    def shapes(self) -> Shapes:
        """What is known about the tensors, for the few rules that ask."""
        return Shapes.of(self.graph, None if self._outer is None else self._outer.shapes)

    def fresh(self, stem: str) -> str:
        """A name that nothing in the model has."""
        return fresh_name(f"opset{TARGET}/{stem}", self._names)

    def const(self, values: Iterable[int]) -> str:
        """The name of a 1-D int64 constant; equal ones are shared."""
        if self._outer is not None:
            return self._outer.const(values)
        array = np.array(tuple(values), np.int64)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._constants:
            self._constants[key] = ir.Tensor.of(self.fresh("ints"), array)
        return self._constants[key].name

    def constant(self, array: np.ndarray, like: ir.Node) -> ir.Node:
        """A Constant node for a value of any type, named after the node it helps to replace."""
        return self.node("Constant", like=like, value=ir.Tensor.of("value", array))

    def numbers(self, name: str) -> np.ndarray | None:
        """The values of a tensor that is an initializer or a Constant node, else None."""
        tensor = self.graph.initializers.get(name)
        producer = self.shapes.producer(name)
        if tensor is None and producer is not None and producer.op_type == "Constant":
            tensor = producer.attr("value")
        if tensor is None and self._outer is not None:
            return self._outer.numbers(name)
        return None if tensor is None else tensor.array()

    def is_read(self, name: str) -> bool:
        """Whether a node, or the world outside, reads a tensor of this graph."""
        return name in self._read

    @cached_property
    def _read(self) -> set[str]:
        names = {value.name for value in self.graph.outputs}
        return names.union(*(outer_reads(node) for node in self.graph.nodes)) - {""}

    def node(self, op_type: str, *inputs: str, like: ir.Node, **attributes: Any) -> ir.Node:
        """A new node with one new output, named after the node it helps to replace."""
        output = self.fresh(f"{like.output(0)}/{op_type}")
        return ir.make_node(op_type, inputs, [output], output, "", **attributes)

    def raised(self) -> ir.Graph:
        """The graph with every node raised; nodes that cannot be are noted in ``problems``."""
        nodes = [new for node in self.graph.nodes for new in self._raise_node(node)]
        constants = {tensor.name: tensor for tensor in self._constants.values()}
        return replace(
            self.graph, nodes=nodes, initializers={**self.graph.initializers, **constants}
        )

    def _raise_node(self, node: ir.Node) -> Iterable[ir.Node]:
        if node.domain not in ir.ONNX_DOMAINS:
            return [self._with_bodies(node)]
        new = _NEW_ATTRIBUTES.get(node.op_type)
        if self.version > TARGET and (node.op_type in _NEW_OPS or new in node.attributes):
            self.problems.append(f"{node.describe()}: newer than opset {TARGET}")
        since, rule = RULES.get(node.op_type, (0, None))
        if self.version > TARGET and node.op_type in NEWER:
            since, rule = self.version + 1, NEWER[node.op_type]
        if rule is None or self.version >= since:
            return [self._with_bodies(node)]
        try:
            return rule(self, node)
        except Unraisable as reason:
            self.problems.append(f"{node.describe()}: {reason}")
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            self.problems.append(f"{node.describe()}: an attribute has a wrong type ({error})")
        return [node]

    def _with_bodies(self, node: ir.Node) -> ir.Node:
        return with_bodies(node, self._body)

    def _body(self, body: ir.Graph) -> ir.Graph:
        return Scope(body, self.version, self, self._names, self.problems).raised()
