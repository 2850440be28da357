"""check_gradients: are the gradients of a model right? For users' own models, on a workstation.

The training graph's gradients, as a device computes them in float32, against central differences
of the same loss in double.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from edge_train import dtypes
from edge_train.errors import ArtifactError, EdgeTrainError
from edge_train.graph import ir, onnx_codec
from edge_train.graph.autodiff import differentiate
from edge_train.graph.differences import Array, Arrays, Evaluator
from edge_train.graph.lowering import lower
from edge_train.graph.parameters import Choice, select
from edge_train.graph.passes import live_nodes
from edge_train.graph.precision import FLOATS, with_floats
from edge_train.graph.prepare import prepare, tidy
from edge_train.graph.shapes import Shapes
from edge_train.session import make_session

__all__ = ["GradientMismatch", "GradientReport", "ParameterCheck", "check_gradients"]

_LOSS = "edge_train/checked_loss"
#: steps of the differences, relative to the parameter's size: a kink may lie within a large one
_STEPS = {True: (1e-4, 1e-6), False: (1e-2, 1e-3)}
_ROUNDING = ("QuantizeLinear", "DynamicQuantizeLinear", "FakeQuant")
_TOLERANCE = {True: 1e-3, False: 2e-2}


class GradientMismatch(EdgeTrainError, AssertionError):
    """A gradient is not the slope of the loss; ``report`` has every number."""

    def __init__(self, text: str, report: GradientReport) -> None:
        super().__init__(text)
        self.report = report


@dataclass(frozen=True)
class ParameterCheck:
    """One parameter: slopes along some directions by the gradient and by differences.

    ``error`` is their distance over the norm of the slopes, at least over a thousandth of the
    largest gradient's and over what float32 can tell from 0 beside the loss; the first direction
    is that of the gradient itself.
    """

    name: str
    shape: tuple[int, ...]
    by_gradient: tuple[float, ...]
    by_differences: tuple[float, ...]
    error: float


@dataclass(frozen=True)
class GradientReport:
    """What ``check_gradients`` found.

    ``unreached``: parameters that the loss does not depend on. ``evaluated_by``: what computed
    the differences. ``tolerance``: the largest error that counts as right.
    """

    loss: float
    parameters: tuple[ParameterCheck, ...]
    unreached: tuple[str, ...]
    evaluated_by: str
    tolerance: float

    @property
    def wrong(self) -> tuple[ParameterCheck, ...]:
        """The parameters whose error is above the tolerance, or not a number."""
        return tuple(check for check in self.parameters if not check.error <= self.tolerance)

    def __str__(self) -> str:
        lines = [f"loss {self.loss:.6g}, differences by {self.evaluated_by}"]
        lines += [
            f"{'WRONG' if check in self.wrong else 'right'} {check.error:.1e} "
            f"{check.name} {list(check.shape)}"
            for check in self.parameters
        ]
        return "\n".join([*lines, *(f"unreached {name}" for name in self.unreached)])


def check_gradients(
    model: str | os.PathLike[str] | bytes | Any,
    inputs: Mapping[str, np.ndarray] | None = None,
    *,
    loss: str | None = None,
    parameters: Sequence[str] | None = None,
    directions: int = 3,
    tolerance: float | None = None,
    seed: int = 0,
) -> GradientReport:
    """Compares the gradients of a forward model with central differences of its loss.

    ``model`` is a path, the bytes of an ONNX file or an onnx.ModelProto. ``inputs`` are arrays by
    name; inputs that are missing are made up: normal floats, zeros for integers, 2 for an unknown
    size. ``loss`` names a scalar output; without it the loss is the mean of every float output
    times random numbers. ``parameters`` are the names of float initializers, all by default.
    Dropout keeps everything here, so that the loss is a function. ``tolerance`` is 1e-3 where the
    differences are computed in double, else 2e-2.

    Returns a report. Errors: GradientMismatch naming the parameters whose gradient is wrong,
    UnsupportedOp for nodes without gradient, ArtifactError for a loss that is random, quantised
    (its gradient is straight-through, no slope) or not one number, ValueError for a parameter or
    input that the model does not have.

    >>> report = check_gradients("classifier.onnx", {"x": images}, parameters=["fc.weight"])
    >>> print(report)
    loss 0.0417, differences by onnxruntime in double
    right 2.1e-07 fc.weight [10, 64]
    """
    source = tidy(with_floats(_without_dropout(_model(model)), dtypes.FLOAT), parameters or ())
    rng = np.random.default_rng(seed)
    feeds = _feeds(source, inputs or {}, rng)
    names = _names(source, parameters)
    if loss is None:
        _gradient_graph(_projected(source), _LOSS, names)  # what has no rule is refused first
        source, loss = _projected(source, feeds, rng), _LOSS
    case = _Case(source, loss, names, feeds)
    report = case.report(directions, rng, tolerance)
    if report.wrong:
        wrong = ", ".join(f"'{check.name}' ({check.error:.1e})" for check in report.wrong)
        raise GradientMismatch(
            f"the gradient of {wrong} is not the slope of the loss '{loss}'; "
            f"allowed is {report.tolerance:.0e}",
            report,
        )
    return report


class _Case:
    """A model at one point: gradients by the training graph, slopes by differences."""

    def __init__(self, source: ir.Model, loss: str, names: Sequence[str], feeds: Arrays) -> None:
        _check_smooth(source)
        self._loss, self._names = loss, names
        plain = _only_output(prepare(source), loss)
        self._training, self._table = _gradient_graph(source, loss, names)
        self._evaluator = Evaluator(_with_inputs(plain, names))
        self._feeds = {**feeds, **_values(source, names)}
        first, second = (float(self._evaluator(self._feeds)[loss].sum()) for _ in range(2))
        if first != second:
            raise ArtifactError(
                f"the loss '{loss}' is {first:.9g} in one run and {second:.9g} in the next: a "
                "random node has no slope; feed its numbers as an input"
            )
        self._value = first

    def report(
        self, directions: int, rng: np.random.Generator, tolerance: float | None
    ) -> GradientReport:
        gradients = self._gradients()
        # float32 leaves such a part of the largest gradient where the slope is exactly 0
        floor = 1e-3 * max((_root_mean_square(g) for g in gradients.values()), default=0.0)
        checks = [
            self._check(name, gradient.astype(np.float64), directions, floor, rng)
            for name, gradient in gradients.items()
        ]
        return GradientReport(
            loss=self._value,
            parameters=tuple(checks),
            unreached=tuple(name for name in self._names if name not in gradients),
            evaluated_by=self._evaluator.backend,
            tolerance=tolerance or _TOLERANCE[self._evaluator.exact],
        )

    def _gradients(self) -> dict[str, Array]:
        session = make_session(
            lower(_with_inputs(self._training, self._names)).model, "training graph"
        )
        fed = {value.name: self._feeds[value.name] for value in session.get_inputs()}
        return dict(zip(self._table, session.run(list(self._table.values()), fed), strict=True))

    def _check(
        self, name: str, gradient: Array, count: int, floor: float, rng: np.random.Generator
    ) -> ParameterCheck:
        along = [gradient, *rng.standard_normal((count, *gradient.shape))]
        units = [way / (np.linalg.norm(way) or 1.0) for way in along]
        expected = np.array([float((gradient * unit).sum()) for unit in units])
        size = max(1.0, float(np.linalg.norm(self._feeds[name])))
        # nor does float32 tell a slope from 0 that is so much smaller than the loss
        noise = max(floor * float(np.sqrt(gradient.size)), 1e-4 * abs(self._value) / size)
        best: tuple[float, Array] = (float("nan"), expected * float("nan"))
        for relative in _STEPS[self._evaluator.exact]:
            step = relative * size
            found = np.array([self._slope(name, unit, step) for unit in units])
            scale = max(float(np.linalg.norm(found)), float(np.linalg.norm(expected)), noise, 1e-30)
            error = float(np.linalg.norm(found - expected)) / scale
            if not error >= best[0]:
                best = error, found
        return ParameterCheck(
            name, gradient.shape, tuple(expected.tolist()), tuple(best[1].tolist()), best[0]
        )

    def _slope(self, name: str, unit: Array, step: float) -> float:
        return self._evaluator.slope(self._loss, self._feeds, name, unit, step)


def _gradient_graph(
    source: ir.Model, loss: str, names: Sequence[str]
) -> tuple[ir.Model, dict[str, str]]:
    """The training graph whose outputs are the gradients, and parameter -> gradient name.

    Errors: UnsupportedOp for nodes without gradient, ArtifactError for a loss not of one number.
    """
    ready = prepare(_only_output(source, loss), {loss, *names})
    graph, table = differentiate(ready.graph, Shapes.of(ready), loss, names)
    ends = [ir.Value(name, dtypes.FLOAT, None) for name in table.values()]
    imports = [pair for pair in ready.opset_imports if pair[0] != ir.MICROSOFT]
    graph = replace(graph, outputs=ends)
    return replace(ready, graph=graph, opset_imports=[*imports, (ir.MICROSOFT, 1)]), table


def _root_mean_square(gradient: Array) -> float:
    return float(np.sqrt(np.mean(gradient.astype(np.float64) ** 2))) if gradient.size else 0.0


# --- the model ----------------------------------------------------------------------------------


def _model(source: str | os.PathLike[str] | bytes | Any) -> ir.Model:
    if hasattr(source, "SerializeToString"):
        source = source.SerializeToString()
    return onnx_codec.load(source)


def _without_dropout(model: ir.Model) -> ir.Model:
    """Dropout with ratio 0 throughout; before opset 12 that is an attribute."""
    if (model.opset() or 0) < 12:
        return replace(
            model, graph=replace(model.graph, nodes=[_kept(n) for n in model.graph.nodes])
        )
    zero = ir.Tensor.of("edge_train/no_dropout", np.zeros((), np.float32))
    nodes = [
        replace(node, inputs=(node.inputs[0], zero.name, *node.inputs[2:]), attributes={})
        if node.op_type == "Dropout"
        else node
        for node in model.graph.nodes
    ]
    if nodes == model.graph.nodes:
        return model
    initializers = {**model.graph.initializers, zero.name: zero}
    return replace(model, graph=replace(model.graph, nodes=nodes, initializers=initializers))


def _check_smooth(model: ir.Model) -> None:
    rounding = [node.describe() for node in model.graph.nodes if node.op_type in _ROUNDING]
    if rounding:
        raise ArtifactError(
            f"{rounding} round: their gradient is straight-through and not the slope of the loss; "
            "check the model before it is quantised"
        )


def _kept(node: ir.Node) -> ir.Node:
    if node.op_type != "Dropout":
        return node
    return replace(node, attributes={"ratio": ir.Attribute.of("ratio", 0.0)})


def _names(model: ir.Model, asked: Sequence[str] | None) -> tuple[str, ...]:
    chosen = select(model.graph, Choice(None if asked is None else tuple(asked)))
    if chosen.problems:
        raise ValueError("parameters: " + "; ".join(chosen.problems))
    return chosen.trainable


def _values(model: ir.Model, names: Sequence[str]) -> dict[str, Array]:
    return {name: model.graph.initializers[name].array() for name in names}


def _with_inputs(model: ir.Model, names: Sequence[str]) -> ir.Model:
    """The model with the named initializers as inputs."""
    graph = model.graph
    tensors = [graph.initializers[name] for name in names if name in graph.initializers]
    fed = [value for value in graph.inputs if value.name not in graph.initializers]
    fed += [ir.Value(t.name, t.data_type, t.dims) for t in tensors]
    rest = {name: t for name, t in graph.initializers.items() if name not in names}
    return replace(model, graph=replace(graph, inputs=fed, initializers=rest))


def _only_output(model: ir.Model, name: str) -> ir.Model:
    shapes = Shapes.of(model)
    end = ir.Value(name, shapes.elem_type(name), shapes.dims(name))
    nodes = live_nodes(model.graph.nodes, [name])
    if not nodes:
        outputs = [value.name for value in model.graph.outputs]
        raise ValueError(f"loss: no node makes '{name}'; the outputs are {outputs}")
    return replace(model, graph=replace(model.graph, nodes=nodes, outputs=[end]))


def _feeds(model: ir.Model, given: Arrays, rng: np.random.Generator) -> dict[str, Array]:
    wanted = [v for v in model.graph.inputs if v.name not in model.graph.initializers]
    unknown = sorted(set(given) - {value.name for value in wanted})
    if unknown:
        raise ValueError(f"inputs: the model has no {unknown}, only {[v.name for v in wanted]}")
    return {v.name: _fed(v, given.get(v.name), rng) for v in wanted}


def _fed(value: ir.Value, given: Array | None, rng: np.random.Generator) -> Array:
    if given is not None:
        given = np.asarray(given)
        return given.astype(np.float32) if given.dtype.kind == "f" else given
    if value.dims is None or value.elem_type is None:
        raise ValueError(f"inputs: give '{value.name}', its type is not declared")
    shape = [dim if isinstance(dim, int) and dim > 0 else 2 for dim in value.dims]
    if value.elem_type in FLOATS:
        return rng.standard_normal(shape).astype(np.float32)
    return np.zeros(shape, dtypes.NUMPY[value.elem_type])


def _projected(
    model: ir.Model, feeds: Arrays | None = None, rng: np.random.Generator | None = None
) -> ir.Model:
    """The model with one more output: the mean of r * y over the float outputs y.

    Without ``rng`` r is 1, and the model is not run to learn the shapes of its outputs.
    """
    shapes = Shapes.of(model)
    ends = [v.name for v in model.graph.outputs if shapes.elem_type(v.name) in (None, *FLOATS)]
    results = Evaluator(model)(feeds or {}) if rng else {}
    nodes, parts, constants = list(model.graph.nodes), [], dict(model.graph.initializers)
    for name in ends:
        r, product, part = (f"{_LOSS}/{name}/{what}" for what in ("r", "product", "mean"))
        random = rng.standard_normal(results[name].shape) if rng else np.ones(1)
        constants[r] = ir.Tensor.of(r, random.astype(np.float32))
        nodes.append(ir.make_node("Mul", [name, r], [product], product))
        nodes.append(ir.make_node("ReduceMean", [product], [part], part, keepdims=0))
        parts.append(part)
    nodes.append(ir.make_node("Sum", parts, [_LOSS], _LOSS))
    outputs = [ir.Value(_LOSS, dtypes.FLOAT, ())]
    graph = replace(model.graph, nodes=nodes, outputs=outputs, initializers=constants)
    return replace(model, graph=graph)
