"""What the losses share: the target input, the reduction, constants of the right type."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edge_train import dtypes
from edge_train.errors import ShapeMismatch
from edge_train.graph import ir
from edge_train.onnxblock import blocks, graphs

Dims = tuple[ir.Dim, ...]

#: opset from which axes are an input
_AXES_INPUT = {"ReduceSum": 13, "ReduceMean": 18, "ReduceMax": 18}


class ReductionError(ValueError, RuntimeError):
    """A reduction that a loss does not have; RuntimeError is what the reference raises."""


class Loss(blocks.Block):
    """A loss with a ``reduction``: "mean", "sum" or "none".

    "none" gives one value per element, to be weighted and reduced by the block around it: what is
    differentiated in the end must be one number. ReductionError, a ValueError, for any other.
    """

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        if reduction not in self.reductions:
            raise ReductionError(
                f"{type(self).__name__} has the reductions {list(self.reductions)}, got "
                f"{reduction!r}"
            )
        self._reduction = reduction

    reductions: tuple[str, ...] = ("mean", "sum", "none")

    def _reduced(self, values: str) -> str:
        if self._reduction == "none":
            return values
        block = blocks.ReduceMean if self._reduction == "mean" else blocks.ReduceSum
        return str(block(keepdims=False)(values))

    def _reduce(self, op_type: str, x: str, axes: Sequence[int], keepdims: bool) -> str:
        """A reduction over some axes, as the model's opset writes it."""
        if graphs.opset_of(self.base) < _AXES_INPUT[op_type]:
            return self._add_node(op_type, [x], axes=list(axes), keepdims=int(keepdims))
        given = self._add_initializer("axes", list(axes), dtypes.INT64)
        return self._add_node(op_type, [x, given], keepdims=int(keepdims))

    def _constant(self, stem: str, values: object, like: str) -> str:
        return self._add_initializer(stem, values, graphs.float_type_of(self.base, like))

    def _target(self, prediction: str, name: str) -> str:
        """The target, of the prediction's type and shape: an input unless the model has it."""
        if not graphs.node_arg_exists(self.base, name):
            return str(blocks.InputLike(prediction)(name))
        _, expected = graphs.type_of(self.base, prediction)
        self._check_dims(name, expected, f"the prediction '{prediction}'")
        return name

    def _check_dims(self, name: str, expected: Dims | None, of: str) -> None:
        """ShapeMismatch unless tensor ``name`` can have the ``expected`` dims."""
        _, got = graphs.type_of(self.base, name)
        if got is None or expected is None:
            return
        if len(got) != len(expected) or any(map(_differ, got, expected)):
            raise ShapeMismatch(
                f"{type(self).__name__}: the target '{name}' has shape {_text(got)}, {of} asks for "
                f"{_text(expected)}; a target is not broadcast: reshape it"
            )


def _differ(a: ir.Dim, b: ir.Dim) -> bool:
    return isinstance(a, int) and isinstance(b, int) and a != b


def _text(dims: Dims) -> str:
    return "(" + ", ".join("?" if dim is None else str(dim) for dim in dims) + ")"


def finite_array(what: str, values: object) -> np.ndarray:
    """``values`` as an array of finite numbers; ValueError otherwise."""
    array = np.asarray(values, np.float64)
    if not np.isfinite(array).all():
        raise ValueError(f"{what} has values that are not finite: {values}")
    return array
