"""Host side: slopes of a graph by central differences, in double wherever something computes it.

The yardstick of gradient checks. The graph is lowered first, so that training forms of ops
(BatchNormInternal and the like) and com.microsoft ops are standard ones; these run in double in
onnxruntime, else in onnx.reference, else in float32 as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edge_train import dtypes
from edge_train.graph import ir, onnx_codec
from edge_train.graph.formula import Refuse
from edge_train.graph.gradients.recurrent import training_form
from edge_train.graph.lowering import lower
from edge_train.graph.precision import with_floats
from edge_train.graph.prepare.names import name_nodes
from edge_train.session import make_session

Array: TypeAlias = NDArray[Any]
Arrays: TypeAlias = Mapping[str, Array]


_REFERENCE = "onnx.reference in double"

_Run: TypeAlias = Callable[[dict[str, Array]], Sequence[Array]]


class Evaluator:
    """Outputs of a graph for fed arrays; the first call finds out what computes them."""

    def __init__(self, model: ir.Model) -> None:
        portable = lower(_with_training_forms(model)).model
        self.names = [value.name for value in portable.graph.outputs]
        self._candidates = list(_candidates(portable, self.names))
        self._run: _Run | None = None

    @property
    def backend(self) -> str:
        """What computes the outputs."""
        return self._candidates[0][0]

    @property
    def exact(self) -> bool:
        """Whether the outputs are computed in double."""
        return self._candidates[0][1]

    def __call__(self, feeds: Arrays) -> dict[str, Array]:
        while len(self._candidates) > 1 and self._run is None:
            try:
                self._run = self._candidates[0][2]()
                found = self._outputs(self._run, feeds)
                if self._candidates[0][0] == _REFERENCE:
                    self._check(found, feeds)
                return found
            except Exception:  # a kernel or a form of an op is missing, told in many ways
                self._run = None
                del self._candidates[0]
        if self._run is None:
            self._run = self._candidates[0][2]()
        return self._outputs(self._run, feeds)

    def _check(self, found: Arrays, feeds: Arrays) -> None:
        """ValueError where the device's runtime gives other outputs.

        onnx.reference reads some ops otherwise: RNN's sequence_lens, GlobalMaxPool over one axis,
        Resize to nearest with floor.
        """
        try:
            given = self._outputs(self._candidates[-1][2](), feeds, np.float32)
        except Exception:  # the float32 kernel is missing: nothing to compare with
            return
        if not all(_near(found[name], expected) for name, expected in given.items()):
            raise ValueError("onnx.reference and onnxruntime differ")

    def _outputs(self, run: _Run, feeds: Arrays, width: Any = None) -> dict[str, Array]:
        kind = width or (np.float64 if self.exact else np.float32)
        fed = {
            name: np.asarray(value, kind if value.dtype.kind == "f" else value.dtype)
            for name, value in feeds.items()
        }
        return dict(zip(self.names, run(fed), strict=True))

    def slope(self, loss: str, feeds: Arrays, name: str, direction: Array, step: float) -> float:
        """(loss(x + step d) - loss(x - step d)) / (2 step) for the fed tensor ``name``."""
        ends = [
            self({**feeds, name: feeds[name].astype(np.float64) + sign * step * direction})[loss]
            for sign in (1, -1)
        ]
        return (float(ends[0].sum()) - float(ends[1].sum())) / (2 * step)


def _near(values: Array, expected: Array) -> bool:
    values, expected = np.asarray(values), np.asarray(expected)
    if values.shape != expected.shape or expected.dtype.kind != "f":
        return values.shape == expected.shape
    finite = np.abs(expected[np.isfinite(expected)])
    atol = 1e-5 * max(1.0, float(finite.max(initial=0.0)))
    return np.allclose(values, expected, rtol=1e-3, atol=atol, equal_nan=True)


def _with_training_forms(model: ir.Model) -> ir.Model:
    """LSTM and GRU in the forms that are lowered to basic ops: those run in double."""
    nodes = [_training_form(node) for node in name_nodes(model).graph.nodes]
    return replace(model, graph=replace(model.graph, nodes=nodes))


def _training_form(node: ir.Node) -> ir.Node:
    if node.op_type not in ("LSTM", "GRU"):
        return node
    try:
        return training_form(node)
    except Refuse:  # its gradient is refused in words; the stock op has the values
        return node


def _candidates(
    portable: ir.Model, names: Sequence[str]
) -> Iterator[tuple[str, bool, Callable[[], _Run]]]:
    """(name, in double, maker) of what may compute the graph, the best first."""
    double = with_floats(portable, dtypes.DOUBLE)
    if not _ROUNDED & {node.op_type for node in double.graph.nodes}:
        yield "onnxruntime in double", True, lambda: _by_onnxruntime(double, names)
    if all(node.domain in ir.ONNX_DOMAINS for node in double.graph.nodes):
        yield _REFERENCE, True, lambda: _by_reference(double, names)
    yield "onnxruntime in float32", False, lambda: _by_onnxruntime(portable, names)


def _by_onnxruntime(model: ir.Model, names: Sequence[str]) -> _Run:
    session = make_session(model, "graph")
    return lambda fed: list(session.run(list(names), fed))


def _by_reference(model: ir.Model, names: Sequence[str]) -> _Run:
    from onnx.reference import ReferenceEvaluator

    evaluator = ReferenceEvaluator(onnx_codec.encode(model), new_ops=_double_ops())
    return lambda fed: list(evaluator.run(list(names), fed))


#: ops whose double kernel in onnxruntime computes in float32
_ROUNDED = {"Shrink"}


def _erf(_: Any, x: Array) -> tuple[Array]:
    return (np.array([math.erf(value) for value in np.ravel(x)], np.float64).reshape(np.shape(x)),)


def _gelu(_: Any, x: Array, approximate: str = "none") -> tuple[Array]:
    if approximate == "tanh":
        inner = np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
    else:
        (inner,) = _erf(_, x / math.sqrt(2))
    return (x * (1 + inner) / 2,)


def _softsign(_: Any, x: Array) -> tuple[Array]:
    return (x / (1 + np.abs(x)),)


def _mean_variance_normalization(_: Any, x: Array, axes: Sequence[int] = (0, 2, 3)) -> tuple[Array]:
    centred = x - x.mean(tuple(axes), keepdims=True)
    return (centred / np.sqrt((centred**2).mean(tuple(axes), keepdims=True)),)


def _double_ops() -> list[type]:
    """Ops that onnx.reference computes in float32 whatever it is fed, or fails at."""
    from onnx.reference.op_run import OpRun

    table = {
        "Erf": _erf,
        "Gelu": _gelu,
        "Softsign": _softsign,
        "MeanVarianceNormalization": _mean_variance_normalization,
    }
    return [type(name, (OpRun,), {"op_domain": "", "_run": run}) for name, run in table.items()]
