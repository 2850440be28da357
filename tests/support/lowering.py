"""Running a few (training) nodes through lowering and stock onnxruntime: the rows of the op tables.

A row is a small graph, what it is fed and what must come out. The same rows go to the reference's
own kernels in tests/parity.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from edge_train import dtypes
from edge_train.graph import ir
from edge_train.graph.lowering import lower
from edge_train.session import make_session

Array = NDArray[Any]
Arrays = Mapping[str, Array]

#: distance to the expected value over its norm
TOLERANCE = 1e-5

#: why a row is not compared with the reference's kernel
NO_KERNEL = "no CPU kernel there"
WRONG_IN_REFERENCE = "the reference is wrong here (docs/differences.md)"


@dataclass(frozen=True)
class Row:
    """Nodes, feeds and the expected outputs (float64 where float32 comes out).

    ``sized``: inputs whose sizes are declared even when the others are symbols (weights).
    ``reference``: "" or the reason why the reference's kernels do not run this row.
    """

    name: str
    nodes: tuple[ir.Node, ...]
    feeds: Arrays
    expected: Arrays
    constants: Arrays = field(default_factory=dict)
    sized: tuple[str, ...] = ()
    tolerance: float = TOLERANCE
    reference: str = ""
    kind: type[np.floating[Any]] = np.float32  # of every feed, constant and output that is float

    def __str__(self) -> str:
        return self.name

    @property
    def ops(self) -> set[tuple[str, str]]:
        """(domain, op type) of every node."""
        return {(node.domain, node.op_type) for node in self.nodes}


def node(
    op_type: str, inputs: str, outputs: str, domain: str = ir.MICROSOFT, **attrs: Any
) -> ir.Node:
    """A node; names are separated by blanks, "_" is an omitted one."""
    names = [["" if name == "_" else name for name in side.split()] for side in (inputs, outputs)]
    return ir.make_node(op_type, *names, name=f"{op_type}_node", domain=domain, **attrs)


def model_of(row: Row, dynamic: bool) -> ir.Model:
    """The row as a model at opset 21; ``dynamic`` makes every size of the inputs a symbol."""
    inputs = []
    for name, value in row.feeds.items():
        fixed = not dynamic or name in row.sized
        dims = value.shape if fixed else [f"{name}_{axis}" for axis in range(value.ndim)]
        inputs.append(ir.Value(name, dtypes.number_of(value.dtype), tuple(dims)))
    outputs = [
        ir.Value(name, _declared(row, value), None if dynamic else value.shape)
        for name, value in row.expected.items()
    ]
    graph = ir.Graph(
        name="row",
        nodes=list(row.nodes),
        inputs=inputs,
        outputs=outputs,
        initializers={name: ir.Tensor.of(name, value) for name, value in row.constants.items()},
    )
    return ir.Model(graph, 10, [("", 21), (ir.MICROSOFT, 1)])


def _declared(row: Row, value: Array) -> int:
    """float64 is the precision of the expectation; the graph computes in the row's own kind."""
    return dtypes.number_of(row.kind if value.dtype == np.float64 else value.dtype)


def in_kind(row: Row, kind: type[np.floating[Any]]) -> Row:
    """The row with float tensors of another type, the expectations unchanged."""

    def cast(arrays: Arrays) -> Arrays:
        return {
            name: value.astype(kind) if value.dtype == row.kind else value
            for name, value in arrays.items()
        }

    def attribute(name: str, value: ir.Attribute) -> ir.Attribute:
        typed = name in ("to", "output_type") and value.value == dtypes.number_of(row.kind)
        return ir.Attribute.of(name, dtypes.number_of(kind)) if typed else value

    nodes = tuple(
        replace(n, attributes={name: attribute(name, a) for name, a in n.attributes.items()})
        for n in row.nodes
    )
    feeds, constants = cast(row.feeds), cast(row.constants)
    return replace(row, nodes=nodes, feeds=feeds, constants=constants, kind=kind)


def session(model: ir.Model) -> onnxruntime.InferenceSession:
    """A stock session of one thread; warnings stay quiet, errors raise."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    # a sanitizer sees the end of a tensor only where each has memory of its own
    options.enable_cpu_mem_arena = "EDGE_TRAIN_NATIVE" not in os.environ
    return make_session(model, "row", options)


def _is_stock(node: ir.Node) -> bool:
    """An op of onnxruntime's own that is no standard one."""
    return (node.domain, node.op_type) == (ir.MICROSOFT, "FusedMatMul")


def run_lowered(row: Row, dynamic: bool = False, fused: bool = False) -> dict[str, Array]:
    """What stock onnxruntime computes for the row after lowering."""
    lowered = lower(model_of(row, dynamic), fused)
    domains = {item.domain for item in lowered.model.graph.nodes if not (fused and _is_stock(item))}
    assert domains <= ({"", ir.NATIVE} if fused else {""}), f"not portable: {domains}"
    results = session(lowered.model).run(list(lowered.results), dict(row.feeds))
    return dict(zip(lowered.results, results, strict=True))


def check(row: Row, got: Arrays) -> None:
    """AssertionError unless shapes, dtypes and values are the expected ones."""
    for name, wanted in row.expected.items():
        value = got[name]
        assert value.shape == wanted.shape, f"{row}: {name} {value.shape} != {wanted.shape}"
        if wanted.dtype != np.float64:
            np.testing.assert_array_equal(value, wanted, err_msg=f"{row}: {name}")
            continue
        scale = max(float(np.linalg.norm(wanted)), 1e-6)
        error = float(np.linalg.norm(value.astype(np.float64) - wanted)) / scale
        assert error <= row.tolerance, f"{row}: {name} is {error:.2e} of its norm away"


def nudged(row: Row) -> Row:
    """The row with expectations wrong by three times its tolerance: ``check`` must refuse it."""
    wrong = {}
    for name, value in row.expected.items():
        if value.dtype != np.float64:
            wrong[name] = np.append(value, np.int64(0))
            continue
        push = 3 * row.tolerance * max(float(np.linalg.norm(value)), 1e-6)
        wrong[name] = value + push / max(np.sqrt(value.size), 1.0)
    return replace(row, expected=wrong)


def slopes(forward: Callable[[Array], Array], x: Array, dy: Array, step: float) -> Array:
    """Gradient of sum(dy * forward(x)) by central differences, float64.

    Exact for a forward that is linear within ``step``.
    """
    gradient = np.zeros(x.shape, np.float64)
    for index in np.ndindex(*x.shape):
        ends = []
        for sign in (1, -1):
            moved = x.copy()
            moved[index] += sign * step
            ends.append(float(np.sum(forward(moved).astype(np.float64) * dy)))
        gradient[index] = (ends[0] - ends[1]) / (2 * step)
    return gradient


def stock(
    op_type: str, feeds: Arrays, outputs: int = 1, reads: str = "", **attrs: Any
) -> Callable[..., list[Array]]:
    """A stock op as a function of arrays by name; ``feeds`` gives names, order, ranks, dtypes.

    ``reads``: the node's inputs where some are omitted ("_").
    """
    names = [f"y{index}" for index in range(outputs)]
    order = ["" if name == "_" else name for name in reads.split()]
    forward = ir.make_node(op_type, order or list(feeds), names, **attrs)
    inputs = [
        # onnxruntime takes sizes of unknown length for none at all
        ir.Value(
            name,
            dtypes.number_of(value.dtype),
            (None,) * value.ndim if value.dtype.kind == "f" else value.shape,
        )
        for name, value in feeds.items()
    ]
    kinds = [dtypes.FLOAT, dtypes.INT64]
    results = [ir.Value(name, kinds[index], None) for index, name in enumerate(names)]
    graph = ir.Graph("stock", [forward], inputs, results)
    run = session(ir.Model(graph, 10, [("", 21)]))

    def call(**arrays: Array) -> list[Array]:
        return list(run.run(None, {**feeds, **arrays}))

    return call


def normals(seed: int, *shapes: tuple[int, ...]) -> list[Array]:
    """float32 arrays of standard normal numbers."""
    rng = np.random.default_rng(seed)
    return [np.asarray(rng.standard_normal(shape), np.float32) for shape in shapes]
