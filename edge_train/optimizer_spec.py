"""Reads optimizer_model.onnx: which optimizer it describes, with which numbers.

The file is a description here. No session is made of it, so its IR version and opset do not matter.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np

from edge_train.errors import ArtifactError, UnsupportedOp
from edge_train.graph import ir, onnx_codec

_MOMENTS = ("first_order_moments", "second_order_moments")
_STATE = ("learning_rate", "step", "params", "gradients", "first_order_moments")
# op -> (inputs of the graph, inputs of the node; the gradients may come by way of the clipping)
_INPUTS = {
    "AdamWOptimizer": (
        (*_STATE, "second_order_moments"),
        ("learning_rate", "step", "params", "gradients", *_MOMENTS),
    ),
    "SGDOptimizerV2": (_STATE, ("learning_rate", "params", "gradients")),
}
_CLIP = "InplaceClipGradNorm"


@dataclass(frozen=True)
class OptimizerSpec:
    """An optimizer and its hyper-parameters, each the exact value of the artifact's float32."""

    op_type: str
    max_grad_norm: float | None = None
    mode: int = 0
    correct_bias: bool = True
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.01

    @property
    def is_adamw(self) -> bool:
        return self.op_type == "AdamWOptimizer"

    @property
    def moments(self) -> int:
        """How many moments a checkpoint keeps; SGD has one that is never used."""
        return 2 if self.is_adamw else 1


def read_spec(source: onnx_codec.Source) -> OptimizerSpec:
    """The optimizer that a file (path or bytes) describes.

    Raises UnsupportedOp naming the nodes of anything but one AdamWOptimizer or SGDOptimizerV2 with
    an optional InplaceClipGradNorm before it, ArtifactError if they are not connected as expected.
    """
    what = "the optimizer graph"
    if isinstance(source, (str, os.PathLike)):
        what = f"the optimizer graph '{os.fspath(source)}'"
    graph = onnx_codec.load(source).graph
    update, clip = _nodes(graph, what)
    _check_inputs(graph, update, clip, what)
    max_grad_norm = None if clip is None else _max_norm(clip, what)
    if update.op_type == "SGDOptimizerV2":
        return OptimizerSpec(update.op_type, max_grad_norm)
    return _adamw(update, max_grad_norm, what)


def _nodes(graph: ir.Graph, what: str) -> tuple[ir.Node, ir.Node | None]:
    known = [node for node in graph.nodes if node.domain == ir.MICROSOFT]
    updates = [node for node in known if node.op_type in _INPUTS]
    clips = [node for node in known if node.op_type == _CLIP]
    if len(updates) != 1 or len(clips) > 1 or len(graph.nodes) != 1 + len(clips):
        nodes = ", ".join(node.describe() for node in graph.nodes) or "no nodes"
        raise UnsupportedOp(
            f"{what} has {nodes}; supported is one AdamWOptimizer or SGDOptimizerV2, optionally "
            f"with one {_CLIP} before it (domain '{ir.MICROSOFT}'). Pass the optimizer_model.onnx "
            "that generate_artifacts wrote"
        )
    return updates[0], clips[0] if clips else None


def _check_inputs(graph: ir.Graph, update: ir.Node, clip: ir.Node | None, what: str) -> None:
    graph_inputs, node_inputs = _INPUTS[update.op_type]
    if clip is not None:
        clipped = clip.output(0)
        node_inputs = tuple(clipped if name == "gradients" else name for name in node_inputs)
        _compare(clip.inputs, ("gradients",), f"{clip.describe()} in {what}")
    _compare(update.inputs, node_inputs, f"{update.describe()} in {what}")
    _compare(tuple(value.name for value in graph.inputs), graph_inputs, what)


def _compare(got: tuple[str, ...], expected: tuple[str, ...], where: str) -> None:
    if got != expected:
        raise ArtifactError(
            f"{where} has the inputs {', '.join(got) or 'none'}; expected {', '.join(expected)}"
        )


def _max_norm(clip: ir.Node, what: str) -> float:
    norm_type = clip.attr("norm_type", "fro")
    if norm_type != "fro":
        raise UnsupportedOp(
            f"{clip.describe()} in {what} has norm_type '{norm_type}'; supported is 'fro'"
        )
    return _float(clip, "max_norm", 1.0)


def _adamw(node: ir.Node, max_grad_norm: float | None, what: str) -> OptimizerSpec:
    mode, correct_bias = node.attr("adam_mode", 0), node.attr("correct_bias", 1)
    if (mode, correct_bias) not in ((0, 1), (1, 0), (1, 1)):
        raise ArtifactError(
            f"{node.describe()} in {what} has adam_mode {mode} with correct_bias {correct_bias}; "
            "expected adam_mode 0 with correct_bias 1, or adam_mode 1 with correct_bias 0 or 1"
        )
    return OptimizerSpec(
        op_type=node.op_type,
        max_grad_norm=max_grad_norm,
        mode=mode,
        correct_bias=bool(correct_bias),
        betas=(_float(node, "alpha", 0.9), _float(node, "beta", 0.999)),
        eps=_float(node, "epsilon", 1e-8),
        weight_decay=_float(node, "weight_decay", 0.01),
    )


def _float(node: ir.Node, name: str, default: float) -> float:
    # An attribute is float32; the schema's default is rounded the same way.
    return float(np.float32(node.attr(name, default)))
