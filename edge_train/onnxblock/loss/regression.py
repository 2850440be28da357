"""Losses over real numbers: MSE, L1, Huber, Kullback-Leibler."""

from __future__ import annotations

import math

import numpy as np

from edge_train import dtypes
from edge_train.onnxblock import blocks, graphs
from edge_train.onnxblock.loss.base import Loss


class MSELoss(Loss):
    """(y - target)^2, reduced."""

    def build(self, loss_input_name: str, target_name: str = "target") -> str:
        """Returns the loss; the target is an input like the prediction unless it exists."""
        target_name = self._target(loss_input_name, target_name)
        difference = blocks.Sub()(loss_input_name, target_name)
        return self._reduced(blocks.Pow(2.0)(difference))


class L1Loss(Loss):
    """|y - target|, reduced."""

    def build(self, loss_input_name: str, target_name: str = "target") -> str:
        """Returns the loss; the target is an input like the prediction unless it exists."""
        target_name = self._target(loss_input_name, target_name)
        return self._reduced(blocks.Abs()(blocks.Sub()(loss_input_name, target_name)))


class HuberLoss(Loss):
    """d^2/2 where d = |y - target| is at most ``delta``, else delta (d - delta/2); reduced."""

    def __init__(self, reduction: str = "mean", delta: float = 1.0) -> None:
        super().__init__(reduction)
        if not (delta > 0 and math.isfinite(delta)):
            raise ValueError(f"delta is a positive number, got {delta}")
        self._delta = delta

    def build(self, loss_input_name: str, target_name: str = "target") -> str:
        """Returns the loss; the target is an input like the prediction unless it exists.

        With c = min(d, delta) both branches are c (d - c/2).
        """
        target_name = self._target(loss_input_name, target_name)
        distance = blocks.Abs()(blocks.Sub()(loss_input_name, target_name))
        delta = self._constant("huber.delta", self._delta, loss_input_name)
        half = self._constant("huber.half", 0.5, loss_input_name)
        near = self._add_node("Min", [distance, delta])
        return self._reduced(blocks.Mul()(near, blocks.Sub()(distance, blocks.Mul()(near, half))))


class KLDivLoss(Loss):
    """target (log target - y) with y already a logarithm (LogSoftmax), reduced.

    "batchmean" divides the sum by the size of axis 0. ``log_target``: the target is a logarithm
    too, and the value exp(target) (target - y).
    """

    reductions = ("mean", "batchmean", "sum", "none")

    def __init__(self, reduction: str = "mean", log_target: bool = False) -> None:
        super().__init__(reduction)
        self._log_target = log_target

    def build(self, loss_input_name: str, target_name: str = "target") -> str:
        """Returns the loss; the target is an input like the prediction unless it exists."""
        target = self._target(loss_input_name, target_name)
        if self._log_target:
            log, target = target, self._add_node("Exp", [target])
        else:  # 0 log 0 counts as 0
            kind = dtypes.NUMPY[graphs.float_type_of(self.base, target)]
            tiny = self._constant("kldiv.tiny", np.finfo(kind).tiny, target)
            log = blocks.Log()(self._add_node("Max", [target, tiny]))
        values = blocks.Mul()(target, blocks.Sub()(log, loss_input_name))
        if self._reduction != "batchmean":
            return self._reduced(values)
        total = blocks.ReduceSum(keepdims=False)(values)
        return str(blocks.Div()(total, self._rows(loss_input_name)))

    def _rows(self, x: str) -> str:
        first = self._add_initializer("kldiv.first", 0, dtypes.INT64)
        rows = self._add_node("Gather", [self._add_node("Shape", [x]), first])
        return str(blocks.Cast(graphs.float_type_of(self.base, x))(rows))
