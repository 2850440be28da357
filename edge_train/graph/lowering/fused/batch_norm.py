"""Training batch normalization by our own kernels: a channel at a time, statistics included."""

from __future__ import annotations

from edge_train.graph import ir
from edge_train.graph.lowering.builder import Builder
from edge_train.graph.lowering.registry import fuses

_EPSILON, _MOMENTUM = 1e-5, 0.9


@fuses("BatchNormInternal")
def batch_norm_internal(b: Builder, node: ir.Node) -> tuple[str, ...] | None:
    """Y, running mean and variance (they replace the state), batch mean and 1 / std."""
    if not node.attr("training_mode", 1) or not _fits(b, node.inputs[0]):
        return None
    y, *moved, mean, inv_std = _kernel(b, node)
    b.updates.update(zip(b.node.inputs[3:5], moved, strict=True))
    return (y, *moved, mean, inv_std)


@fuses("BatchNormalization", domain="")
def batch_normalization(b: Builder, node: ir.Node) -> tuple[str, ...] | None:
    if not node.attr("training_mode", 0) or not _fits(b, node.inputs[0]):
        return None
    return _kernel(b, node)[:3]


def _kernel(b: Builder, node: ir.Node) -> tuple[str, ...]:
    x, scale = node.inputs[:2]
    return b.native(
        "BatchNorm",
        *node.inputs[:5],
        like=(x, scale, scale, scale, scale),
        epsilon=node.attr("epsilon", _EPSILON),
        momentum=node.attr("momentum", _MOMENTUM),
    )


def _fits(b: Builder, x: str) -> bool:
    return (b.shapes.rank(x) or 0) >= 2


@fuses("BatchNormalizationGrad")
def batch_normalization_grad(b: Builder, node: ir.Node) -> tuple[str, ...] | None:
    """dX, dScale, dB."""
    x, scale = node.inputs[1:3]
    if not _fits(b, x):
        return None
    wanted = [b.is_read(b.node.output(i)) for i in range(3)]
    return b.native_some("BatchNormGrad", node.inputs, (x, scale, scale), wanted)
