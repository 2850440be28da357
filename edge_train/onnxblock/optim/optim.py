"""AdamW and SGD graphs: their inputs, an optional clipping of the gradients, one update node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnx import TensorProto, helper

from edge_train.onnxblock import blocks, graphs
from edge_train.onnxblock.onnxblock import ForwardBlock
from edge_train.optimizer_settings import check_betas, check_number

_MICROSOFT = "com.microsoft"

Parameters = tuple[Sequence[TensorProto], Sequence[TensorProto]]


class ClipGradNorm(blocks.Block):
    """Scales all gradients so that their common L2 norm is at most ``max_norm``, above 0."""

    def __init__(self, max_norm: float) -> None:
        super().__init__()
        self._max_norm = float(max_norm)
        if not self._max_norm > 0:  # a negative one turns every step around
            raise ValueError(f"ClipGradNorm: max_norm is above 0, got {max_norm}")

    def build(self, gradients_name: str) -> str:
        clipped = self._add_node(
            "InplaceClipGradNorm",
            [gradients_name],
            "clip_grad_norm_output",
            domain=_MICROSOFT,
            max_norm=self._max_norm,
        )
        info = helper.make_tensor_sequence_value_info(clipped, TensorProto.FLOAT, None)
        self.base.graph.value_info.append(info)
        return clipped


class SGDOptimizer(blocks.Block):
    """The update node of SGD: w - lr g."""

    def build(self, learning_rate_name: str, params_name: str, gradients_name: str) -> str:
        inputs = [learning_rate_name, params_name, gradients_name]
        return self._add_node("SGDOptimizerV2", inputs, "update_completed", domain=_MICROSOFT)


class AdamWOptimizer(blocks.Block):
    """The update node of AdamW (adam_mode 1: the decay after the step).

    ValueError, TypeError for settings that no step could be made with: NaN, below 0, betas of 1.
    """

    def __init__(
        self,
        bias_correction: bool | None = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float | None = 1e-6,
        weight_decay: float | None = 0.0,
    ) -> None:
        super().__init__()
        alpha, beta = check_betas("betas", betas)
        self._attributes: dict[str, Any] = {
            "alpha": alpha,
            "beta": beta,
            "epsilon": check_number("eps", 1e-6 if eps is None else eps),
            "weight_decay": check_number("weight_decay", weight_decay or 0.0),
            "correct_bias": int(bool(bias_correction)),
            "adam_mode": 1,
        }

    def build(
        self,
        learning_rate_name: str,
        step_name: str,
        parameter_sequence_name: str,
        gradient_sequence_name: str,
        first_order_moment_sequence_name: str,
        second_order_moment_sequence_name: str,
    ) -> str:
        inputs = [
            learning_rate_name,
            step_name,
            parameter_sequence_name,
            gradient_sequence_name,
            first_order_moment_sequence_name,
            second_order_moment_sequence_name,
        ]
        stem = "adamw.updated_flag"
        return self._add_node("AdamWOptimizer", inputs, stem, domain=_MICROSOFT, **self._attributes)


class _Optimizer(ForwardBlock):
    """The graph around an update node; called with the parameters of a TrainingBlock."""

    _sequences: tuple[str, ...] = ("params", "gradients", "first_order_moments")

    def __init__(self, clip_grad: blocks.Block | None = None) -> None:
        super().__init__()
        self._clip_grad = clip_grad

    def build(self, parameters: Parameters) -> str:
        trainable = parameters[0]
        if not trainable:
            raise ValueError("the optimizer has no trainable parameters")
        graph = self.base.graph
        for name, kind in (("learning_rate", TensorProto.FLOAT), ("step", TensorProto.INT64)):
            graph.input.append(graphs.value_info(name, kind, (1,)))
        weights = trainable[0].data_type
        for name in self._sequences:
            graph.input.append(helper.make_tensor_sequence_value_info(name, weights, None))
        gradients = "gradients" if self._clip_grad is None else self._clip_grad("gradients")
        updated = self._update(gradients)
        graph.output.append(graphs.value_info(updated, TensorProto.BOOL, (1,)))
        return updated

    def _update(self, gradients: str) -> str:
        raise NotImplementedError


class AdamW(_Optimizer):
    """AdamW, optionally with the gradients clipped first."""

    _sequences = (*_Optimizer._sequences, "second_order_moments")

    def __init__(
        self,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        clip_grad: blocks.Block | None = None,
    ) -> None:
        super().__init__(clip_grad)
        self._adamw = AdamWOptimizer(bias_correction, betas, eps, weight_decay)

    def _update(self, gradients: str) -> str:
        moments = ("first_order_moments", "second_order_moments")
        return str(self._adamw("learning_rate", "step", "params", gradients, *moments))


class SGD(_Optimizer):
    """Plain SGD, optionally with the gradients clipped first."""

    def __init__(self, clip_grad: blocks.Block | None = None) -> None:
        super().__init__(clip_grad)
        self._sgd = SGDOptimizer()

    def _update(self, gradients: str) -> str:
        return str(self._sgd("learning_rate", "params", gradients))
