"""Host side: slopes of a graph by central differences, in double wherever something computes it.

The yardstick of gradient checks. The graph is lowered first, so that training forms of ops
(BatchNormInternal and the like) and com.microsoft ops are standard ones; these run in double in
onnxruntime, else in onnx.reference, else in float32 as they are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edge_train import dtypes
from edge_train.errors import ArtifactError
from edge_train.graph import ir, onnx_codec
from edge_train.graph.lowering import lower
from edge_train.graph.precision import with_floats
from edge_train.session import make_session

Array: TypeAlias = NDArray[Any]
Arrays: TypeAlias = Mapping[str, Array]


class Evaluator:
    """Outputs of a graph for fed arrays. ``backend`` says who computes, ``exact`` if in double."""

    def __init__(self, model: ir.Model) -> None:
        portable = lower(model).model
        self.names = [value.name for value in portable.graph.outputs]
        self._run, self.backend, self.exact = _runner(portable, self.names)

    def __call__(self, feeds: Arrays) -> dict[str, Array]:
        kind = np.float64 if self.exact else np.float32
        fed = {
            name: np.asarray(value, kind if value.dtype.kind == "f" else value.dtype)
            for name, value in feeds.items()
        }
        return dict(zip(self.names, self._run(fed), strict=True))

    def slope(self, loss: str, feeds: Arrays, name: str, direction: Array, step: float) -> float:
        """(loss(x + step d) - loss(x - step d)) / (2 step) for the fed tensor ``name``."""
        ends = [
            self({**feeds, name: feeds[name].astype(np.float64) + sign * step * direction})[loss]
            for sign in (1, -1)
        ]
        return (float(ends[0].sum()) - float(ends[1].sum())) / (2 * step)


def _runner(portable: ir.Model, names: Sequence[str]) -> tuple[Any, str, bool]:
    double = with_floats(portable, dtypes.DOUBLE)
    ops = {node.op_type for node in double.graph.nodes}
    if not ops & _ROUNDED:
        try:
            session = make_session(double, "graph in double")
            return (lambda fed: session.run(names, dict(fed))), "onnxruntime in double", True
        except ArtifactError:
            pass  # some op has no kernel for double
    if all(node.domain in ir.ONNX_DOMAINS for node in double.graph.nodes):
        from onnx.reference import ReferenceEvaluator

        evaluator = ReferenceEvaluator(onnx_codec.encode(double), new_ops=_double_ops())
        return (lambda fed: evaluator.run(list(names), dict(fed))), "onnx.reference in double", True
    plain = make_session(portable, "graph")
    return (lambda fed: plain.run(names, dict(fed))), "onnxruntime in float32", False


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
