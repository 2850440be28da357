"""Formula: what rules write nodes with, and where they learn ranks, sizes and dtypes.

Rules read as formulas: ``b.mul(dy, b.sub(1.0, b.mul(y, y)))``. A Python number becomes a scalar
constant in the dtype of the other operand; equal constants are stored once. Lowering (device side)
and differentiation (host side) both build on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from edge_train import dtypes
from edge_train.graph import ir
from edge_train.graph.shapes import Shapes

Operand = str | float | int

#: states and slices of one step -> new states and outputs
ScanBody: TypeAlias = Callable[[Sequence[str], Sequence[str]], tuple[Sequence[str], Sequence[str]]]

#: the largest slice end: "to the end of the axis" in every opset
TO_END = np.iinfo(np.int64).max


class Refuse(Exception):
    """This form of an op cannot be handled; the text is the reason, the driver adds the node."""


class Formula:
    """Collects nodes and constants that go into a graph; knows the graph's tensors."""

    #: what the names of new tensors begin with; no two Formulas on one graph may share it
    prefix = "edge_train"

    def __init__(self, graph: ir.Graph, shapes: Shapes) -> None:
        self.source = graph
        self.shapes = shapes
        self.nodes: list[ir.Node] = []
        self.constants: dict[str, ir.Tensor] = {}
        #: initializers that are parameters: another run has other values
        self.variables: frozenset[str] = frozenset()
        self.producers = graph.producers()
        self._known: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._shape_of: dict[str, str] = {}
        self._count = 0
        self._node: ir.Node | None = None

    # ---- facts about tensors ----------------------------------------------------------------

    def rank(self, name: str) -> int:
        """The number of axes of a tensor; Refuse when nothing tells it."""
        rank = self.shapes.rank(name)
        if rank is None:
            raise Refuse(f"the rank of '{name}' is not known; keep value_info in the model")
        return rank

    def dims(self, name: str) -> tuple[ir.Dim, ...]:
        """Sizes, symbols and unknowns of a tensor of known rank."""
        self.rank(name)
        return self.shapes.dims(name) or ()

    def elem_type(self, name: str) -> int:
        """The ONNX data type of a tensor; float32 where nothing tells it."""
        return self.shapes.elem_type(name) or dtypes.FLOAT

    def constant_value(self, name: str) -> np.ndarray | None:
        """The values of a tensor that is an initializer or a Constant node, else None."""
        if name in self.variables:
            return None
        tensor = self.source.initializers.get(name) or self.constants.get(name)
        producer = self.producers.get(name)
        if tensor is None and producer is not None and producer.op_type == "Constant":
            tensor = producer.attr("value")
        return None if tensor is None else tensor.array()

    # ---- constants --------------------------------------------------------------------------

    def const(self, value: np.ndarray) -> str:
        """A constant tensor; equal ones share a name."""
        value = np.asarray(value)
        key = (value.dtype.str, value.shape, value.tobytes())
        if key not in self._known:
            name = self._known[key] = self._fresh("const")
            self.constants[name] = ir.Tensor.of(name, value)
            self.shapes.learn_tensor(name, self.constants[name])
        return self._known[key]

    def ints(self, *values: int) -> str:
        """A 1-D int64 constant."""
        return self.const(np.array(values, np.int64))

    def scalar(self, value: float, like: str) -> str:
        """A rank-0 constant in the dtype of tensor ``like``."""
        return self.const(np.array(value, dtypes.NUMPY[self.elem_type(like)]))

    def fresh_prefix(self) -> str:
        """A prefix for a Formula on a subgraph."""
        return self._fresh("body")

    def _fresh(self, stem: str) -> str:
        self._count += 1
        return f"{self.prefix}/{stem}_{self._count}"

    # ---- nodes ------------------------------------------------------------------------------

    def ops(
        self,
        op_type: str,
        *inputs: str,
        n: int,
        elem_type: int | None = None,
        domain: str = "",
        **attributes: Any,
    ) -> tuple[str, ...]:
        """Adds a node with ``n`` outputs of the told dtype, else the op's or the first input's."""
        outputs = tuple(self._fresh(op_type) for _ in range(n))
        name = self._node_name(op_type, outputs[0])
        node = ir.make_node(op_type, inputs, outputs, name, domain, **attributes)
        self.nodes.append(node)
        for output in outputs:
            self.shapes.set(output, elem_type, None)
        self.shapes.infer_node(node)
        for output in outputs:
            self.shapes.learn(output, self.elem_type(inputs[0]), None)
        return outputs

    def op(
        self,
        op_type: str,
        *inputs: str,
        elem_type: int | None = None,
        domain: str = "",
        **attributes: Any,
    ) -> str:
        """Adds a node with one output and returns its name."""
        return self.ops(op_type, *inputs, n=1, elem_type=elem_type, domain=domain, **attributes)[0]

    def _node_name(self, op_type: str, output: str) -> str:
        return f"{self._node.name if self._node else ''}/{output}"

    def _binary(self, op_type: str, a: Operand, b: Operand, elem_type: int | None = None) -> str:
        if not isinstance(a, str):
            if not isinstance(b, str):
                raise TypeError("a formula needs at least one tensor")
            a = self.scalar(a, b)
        elif not isinstance(b, str):
            b = self.scalar(b, a)
        return self.op(op_type, a, b, elem_type=elem_type)

    def add(self, a: Operand, b: Operand) -> str:
        return self._binary("Add", a, b)

    def sub(self, a: Operand, b: Operand) -> str:
        return self._binary("Sub", a, b)

    def mul(self, a: Operand, b: Operand) -> str:
        return self._binary("Mul", a, b)

    def div(self, a: Operand, b: Operand) -> str:
        return self._binary("Div", a, b)

    def equal(self, a: Operand, b: Operand) -> str:
        return self._binary("Equal", a, b, dtypes.BOOL)

    def greater(self, a: Operand, b: Operand) -> str:
        return self._binary("Greater", a, b, dtypes.BOOL)

    def neg(self, x: str) -> str:
        return self.op("Neg", x)

    def exp(self, x: str) -> str:
        return self.op("Exp", x)

    def where(self, condition: str, a: Operand, b: Operand) -> str:
        """``a`` where the condition holds, else ``b``."""
        like = a if isinstance(a, str) else b
        if not isinstance(like, str):
            raise TypeError("where needs at least one tensor branch")
        a, b = (v if isinstance(v, str) else self.scalar(v, like) for v in (a, b))
        return self.op("Where", condition, a, b, elem_type=self.elem_type(like))

    def masked(self, condition: str, x: str) -> str:
        """``x`` where the condition holds, else 0.

        A product with 0 and 1: onnxruntime's Where takes six times as long. An infinite ``x``
        under a false condition gives NaN; a gradient with an infinity is spoilt either way.
        """
        return self.mul(x, self.cast_like(condition, x))

    def cast(self, x: str, elem_type: int) -> str:
        """``x`` in another dtype; ``x`` itself where it has it."""
        if self.shapes.elem_type(x) == elem_type:
            return x
        return self.op("Cast", x, elem_type=elem_type, to=elem_type)

    def cast_like(self, x: str, like: str) -> str:
        """``x`` in the dtype of ``like``."""
        return self.cast(x, self.elem_type(like))

    def sum(self, x: str, axes: Sequence[int], keepdims: bool = True) -> str:
        return self._reduce("ReduceSum", x, axes, keepdims)

    def mean(self, x: str, axes: Sequence[int], keepdims: bool = True) -> str:
        return self._reduce("ReduceMean", x, axes, keepdims)

    def _reduce(self, op_type: str, x: str, axes: Sequence[int], keepdims: bool) -> str:
        if not axes:  # an empty axes list would mean "all" to Reduce*
            return x
        return self.op(op_type, x, self.ints(*axes), keepdims=int(keepdims))

    def shape(self, x: str) -> str:
        """The shape of ``x`` as a 1-D int64 tensor: a constant where every size is known."""
        if x not in self._shape_of:
            dims = self.shapes.dims(x)
            if dims is not None and all(isinstance(dim, int) for dim in dims):
                return self.ints(*(int(dim) for dim in dims if dim is not None))
            self._shape_of[x] = self.op("Shape", x, elem_type=dtypes.INT64)
        return self._shape_of[x]

    def shape_slice(self, x: str, start: int, end: int) -> str:
        """Sizes ``start`` to ``end`` (0 <= start < end <= rank) of ``x`` as a 1-D int64 tensor."""
        dims = self.shapes.dims(x)
        if dims is not None and all(isinstance(dim, int) for dim in dims[start:end]):
            return self.ints(*(int(dim) for dim in dims[start:end] if dim is not None))
        return self.op("Shape", x, elem_type=dtypes.INT64, start=start, end=end)

    def concat_ints(self, *parts: str | int) -> str:
        """Joins 1-D int64 tensors and numbers into one 1-D int64 tensor."""
        names = [part if isinstance(part, str) else self.ints(part) for part in parts]
        values = [self.constant_value(name) for name in names]
        known = [value for value in values if value is not None]
        if len(known) == len(values):
            return self.const(np.concatenate(known).astype(np.int64))
        return self.op("Concat", *names, axis=0)

    def reshape(self, x: str, *parts: str | int) -> str:
        """``x`` with the shape joined from sizes, -1 and 1-D int64 tensors."""
        return self.op("Reshape", x, self.concat_ints(*parts))

    def reshape_like(self, x: str, like: str) -> str:
        """``x`` with the shape of ``like``."""
        return self.op("Reshape", x, self.shape(like))

    def transpose(self, x: str, *perm: int) -> str:
        if list(perm) == list(range(len(perm))):
            return x
        return self.op("Transpose", x, perm=list(perm))

    def zeros(self, shape: str, like: str) -> str:
        """Zeros of a run-time shape in the dtype of ``like``."""
        kind = self.elem_type(like)
        value = ir.Tensor.of("value", np.zeros(1, dtypes.NUMPY[kind]))
        return self.op("ConstantOfShape", shape, elem_type=kind, value=value)

    def scan(
        self,
        body: ScanBody,
        states: Sequence[str],
        sequences: Sequence[str],
        backwards: bool = False,
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The last states and the stacked outputs of a body run along axis 0 of the sequences.

        The body may read any tensor of the graph, but must not ask for shapes: the nodes for them
        are kept for later. ``backwards`` goes from the last slice to the first; the outputs then
        still lie as the sequences do.
        """
        inputs = [self._body_input(name, 0) for name in states]
        inputs += [self._body_input(name, 1) for name in sequences]
        names = [value.name for value in inputs]
        outer, self.nodes = self.nodes, []
        try:
            last, stacked = body(names[: len(states)], names[len(states) :])
            ends = self._distinct([*last, *stacked])
            nodes = self.nodes
        finally:
            self.nodes = outer
        outputs = [ir.Value(name, self.elem_type(name), None) for name in ends]
        results = self.ops(
            "Scan",
            *states,
            *sequences,
            n=len(outputs),
            body=ir.Graph("step", nodes, inputs, outputs),
            num_scan_inputs=len(sequences),
            scan_input_directions=[int(backwards)] * len(sequences),
            scan_output_directions=[int(backwards)] * len(stacked),
        )
        return results[: len(states)], results[len(states) :]

    def _distinct(self, names: list[str]) -> list[str]:
        """Outputs of a body, each made by a node and named once: else onnxruntime mixes up their
        memory, without a word."""
        made = {name for node in self.nodes for name in node.outputs}
        distinct: list[str] = []
        for name in names:
            fresh = name in made and name not in distinct
            distinct.append(name if fresh else self.op("Identity", name))
        return distinct

    def _body_input(self, name: str, skip: int) -> ir.Value:
        """What the body of a scan sees of an outer tensor without its first ``skip`` axes."""
        dims = self.shapes.dims(name)
        value = ir.Value(
            self._fresh("in"), self.elem_type(name), None if dims is None else dims[skip:]
        )
        self.shapes.set(value.name, value.elem_type, value.dims)
        return value

    def rename(self, old: str, new: str) -> None:
        """Forgets a tensor that was given another name."""
        self._shape_of.pop(old, None)
        self.shapes.set(new, self.shapes.elem_type(old), self.shapes.dims(old))

    def begin(self, node: ir.Node) -> None:
        """Says which source node the next nodes are for; their names show it."""
        self._node = node
