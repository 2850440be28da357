"""The rows of the gradient tables: a few forward nodes, differentiated, lowered and run by stock
onnxruntime against central differences in float64.

The outputs are projected on random numbers r: the loss is sum(r * y). Families of rows lie in
support/gradient_rows; a row named like its op ("Elu", "cm.FastGelu") is the op's smoke row, a row
with a colon ("Elu:alpha") runs in the slow lane.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from support.lowering import node, normals, session

from edge_train import dtypes
from edge_train.graph import ir
from edge_train.graph.autodiff import differentiate
from edge_train.graph.differences import Evaluator
from edge_train.graph.lowering import lower
from edge_train.graph.precision import with_floats
from edge_train.graph.prepare import prepare
from edge_train.graph.shapes import Shapes

__all__ = ["Row", "away", "chain", "node", "normals", "single"]

Array = NDArray[Any]
Arrays = Mapping[str, Array]

#: distance to the expected gradient over its norm
TOLERANCE = 1e-5
#: inputs up to this size are checked number by number, larger ones along random directions
COORDINATES = 64
DIRECTIONS = 24


@dataclass(frozen=True)
class Row:
    """Forward nodes with what they are fed; gradients are wanted of ``wanted``.

    ``expected``: gradients by input name from (inputs, r by output), float64, where the op has a
    kink at the point or is straight-through; differences otherwise. ``forward``: nodes that
    compute the same in float64, where the row's own do not (training mode). ``sized``: inputs
    whose sizes are declared even when the others are symbols. ``symbols``: False with a reason in
    a comment where sizes must be known. ``zero``: inputs that must get no gradient.
    """

    name: str
    nodes: tuple[ir.Node, ...]
    inputs: Arrays
    constants: Arrays = field(default_factory=dict)
    wanted: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    forward: tuple[ir.Node, ...] = ()
    expected: Callable[[dict[str, Array], dict[str, Array]], Arrays] | None = None
    sized: tuple[str, ...] = ()
    symbols: bool = True
    zero: tuple[str, ...] = ()
    tolerance: float = TOLERANCE
    step: float = 1e-5
    opset: int = 21

    def __post_init__(self) -> None:
        arrays = {name: np.asarray(value) for name, value in self.inputs.items()}
        object.__setattr__(self, "inputs", arrays)

    def __str__(self) -> str:
        return self.name

    @property
    def ops(self) -> set[tuple[str, str]]:
        """(domain, op type) of every node, as written and in training mode."""
        ready = prepare(forward_model(self)).graph.nodes
        return {(n.domain, n.op_type) for n in (*self.nodes, *ready)}

    @property
    def asked(self) -> tuple[str, ...]:
        """The inputs whose gradient is wanted: every float one unless the row says which."""
        floats = (name for name, value in self.inputs.items() if value.dtype.kind == "f")
        return self.wanted or tuple(name for name in floats if name not in self.zero)

    @property
    def ends(self) -> tuple[str, ...]:
        """The outputs that make the loss: the last node's unless the row says which."""
        return self.outputs or tuple(filter(None, self.nodes[-1].outputs))


def single(
    name: str,
    inputs: Arrays,
    reads: str = "",
    makes: str = "y",
    attrs: Mapping[str, Any] | None = None,
    **options: Any,
) -> Row:
    """A row of one node. "Op", "Op:form" or "cm.Op:form"; "_" in ``reads`` is an omitted input."""
    op_type = name.partition(":")[0]
    domain = ir.MICROSOFT if op_type.startswith("cm.") else ""
    reads = reads or " ".join([*inputs, *options.get("constants", {})])
    made = node(op_type.removeprefix("cm."), reads, makes, domain, **(attrs or {}))
    return Row(name, (made,), inputs, **options)


def chain(name: str, nodes: Sequence[ir.Node], inputs: Arrays, **options: Any) -> Row:
    """A row of several nodes, which get names of their own."""
    named = (replace(n, name=f"{n.name}_{index}") for index, n in enumerate(nodes))
    return Row(name, tuple(named), inputs, **options)


def away(x: Array, *kinks: float, by: float = 0.05) -> Array:
    """The numbers moved at least ``by`` away from where an op has a kink."""
    for kink in kinks:
        side = np.where(x >= kink, 1, -1)
        x = np.where(np.abs(x - kink) < by, kink + 2 * by * side, x)
    return np.asarray(x, np.float32)


# --- models --------------------------------------------------------------------------------------


def forward_model(row: Row, dynamic: bool = False, nodes: Sequence[ir.Node] = ()) -> ir.Model:
    """The row without a loss; ``dynamic`` makes every size of the inputs a symbol."""
    inputs = []
    for name, value in row.inputs.items():
        fixed = not dynamic or name in row.sized
        dims = value.shape if fixed else [f"{name}_{axis}" for axis in range(value.ndim)]
        inputs.append(ir.Value(name, dtypes.number_of(value.dtype), tuple(dims)))
    graph = ir.Graph(
        name="row",
        nodes=list(nodes or row.nodes),
        inputs=inputs,
        outputs=[ir.Value(name, dtypes.FLOAT, None) for name in row.ends],
        initializers={name: ir.Tensor.of(name, value) for name, value in row.constants.items()},
    )
    return ir.Model(graph, 8 if row.opset < 21 else 10, [("", row.opset), (ir.MICROSOFT, 1)])


def with_loss(model: ir.Model, weights: Arrays) -> ir.Model:
    """The model with one output: sum of r * y over the named outputs, r being constants."""
    nodes, parts, constants = list(model.graph.nodes), [], {}
    for index, (name, value) in enumerate(weights.items()):
        r, product, part = (f"{stem}_{index}" for stem in ("r", "product", "part"))
        constants[r] = ir.Tensor.of(r, value.astype(np.float32))
        nodes.append(ir.make_node("Mul", [name, r], [product], product))
        nodes.append(ir.make_node("ReduceSum", [product], [part], part, keepdims=0))
        parts.append(part)
    nodes.append(ir.make_node("Sum", parts, ["loss"], "loss"))
    graph = replace(
        model.graph,
        nodes=nodes,
        outputs=[ir.Value("loss", dtypes.FLOAT, ())],
        initializers={**model.graph.initializers, **constants},
    )
    return replace(model, graph=graph)


def weights_of(row: Row) -> dict[str, Array]:
    """Random r with the shape of each output that makes the loss, exact in float16."""
    rng = np.random.default_rng(len(row.name))
    # not onnx.reference: it has other sizes than onnxruntime for some pools
    lowered = lower(forward_model(row)).model
    used = {value.name for value in lowered.graph.inputs}
    feeds = {name: value for name, value in row.inputs.items() if name in used}
    made = dict(zip(row.ends, session(lowered).run(list(row.ends), feeds), strict=True))
    return {
        name: np.asarray(rng.standard_normal(made[name].shape), np.float16).astype(np.float32)
        for name in row.ends
    }


def gradient_model(
    row: Row, weights: Arrays, dynamic: bool, kind: int = dtypes.FLOAT
) -> tuple[ir.Model, dict[str, str]]:
    """The training graph of the row with the gradients as outputs: input -> its output's name."""
    model = prepare(with_floats(with_loss(forward_model(row, dynamic), weights), kind))
    shapes = Shapes.of(model)
    graph, table = differentiate(model.graph, shapes, "loss", [*row.asked, *row.zero])
    ends = [ir.Value(name, kind, shapes.dims(name)) for name in table.values()]
    made = {
        name for n in graph.nodes for name in n.outputs if name and shapes.dims(name) is not None
    }
    told = {name: ir.Value(name, shapes.elem_type(name), shapes.dims(name)) for name in made}
    return replace(
        model,
        graph=replace(
            graph,
            outputs=[*graph.outputs, *ends],
            value_info={name: value for name, value in told.items() if value.elem_type},
        ),
        opset_imports=[*((d, v) for d, v in model.opset_imports if d == ""), (ir.MICROSOFT, 1)],
    ), table


# --- gradients -----------------------------------------------------------------------------------


def run_gradients(
    row: Row,
    weights: Arrays,
    dynamic: bool = False,
    kind: int = dtypes.FLOAT,
    fused: bool = False,
) -> dict[str, Array]:
    """Gradients of the row's inputs by autodiff, lowering and stock onnxruntime."""
    model, table = gradient_model(row, weights, dynamic, kind)
    lowered = lower(model, fused)
    wide = dtypes.NUMPY[kind]
    feeds = {n: np.asarray(v, wide) if v.dtype.kind == "f" else v for n, v in row.inputs.items()}
    used = {value.name for value in lowered.model.graph.inputs}
    results = session(lowered.model).run(list(table.values()), {n: feeds[n] for n in used})
    got: dict[str, Array] = dict(zip(table, results, strict=True))
    assert not set(row.zero) & set(got), f"{row}: a gradient for {row.zero}"
    assert set(got) == set(row.asked), f"{row}: gradients of {sorted(got)} only"
    return got


def directions_of(row: Row, name: str) -> Array:
    """(k, size): unit vectors, or random ones of unit length for a large input."""
    size = row.inputs[name].size
    if size <= COORDINATES:
        return np.eye(size)
    random = np.random.default_rng(7).standard_normal((DIRECTIONS, size))
    return np.asarray(random / np.linalg.norm(random, axis=1, keepdims=True))


def expected_slopes(row: Row, weights: Arrays) -> dict[str, Array]:
    """The slope of the loss along each direction, by input name."""
    inputs = {n: v.astype(np.float64) if v.dtype.kind == "f" else v for n, v in row.inputs.items()}
    wide = {name: value.astype(np.float64) for name, value in weights.items()}
    if row.expected is not None:
        given = row.expected(inputs, wide)
        return {name: directions_of(row, name) @ given[name].ravel() for name in row.asked}
    evaluator = Evaluator(with_loss(forward_model(row, nodes=row.forward), weights))
    evaluator(inputs)
    assert evaluator.exact, f"{row}: needs `forward` nodes that run in float64"

    def slope(name: str, direction: Array) -> float:
        shaped = direction.reshape(inputs[name].shape)
        return evaluator.slope("loss", inputs, name, shaped, row.step)

    return {
        name: np.array([slope(name, direction) for direction in directions_of(row, name)])
        for name in row.asked
    }


def check_slopes(row: Row, got: Arrays, slopes: Arrays, tolerance: float = 0.0) -> None:
    """AssertionError unless shapes, dtypes and the slopes along the directions are right."""
    for name, wanted in slopes.items():
        value = got[name]
        assert value.shape == row.inputs[name].shape, f"{row}: {name} has shape {value.shape}"
        along = directions_of(row, name) @ value.astype(np.float64).ravel()
        scale = max(float(np.linalg.norm(wanted)), 1e-3)
        error = float(np.linalg.norm(along - wanted)) / scale
        limit = tolerance or row.tolerance
        assert error <= limit, f"{row}: d{name} is {error:.2e} of its norm away\n{along}\n{wanted}"


def nudged(row: Row, slopes: Arrays) -> dict[str, Array]:
    """Slopes wrong by three times the tolerance: ``check_slopes`` must refuse them."""
    return {
        name: value + 3 * row.tolerance * max(float(np.linalg.norm(value)), 1e-3)
        for name, value in slopes.items()
    }
