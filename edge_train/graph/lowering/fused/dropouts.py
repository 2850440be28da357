"""Dropout by our own kernels (native/dropout.c): a mask follows from its seed, and nobody keeps it.

The forward op draws the seed, 8 bytes; its gradient works the same mask out again. Where anything
but such a gradient reads the mask, or in the body of a loop, onnxruntime makes it.
"""

from __future__ import annotations

import numpy as np

from edge_train import dtypes
from edge_train.graph import ir
from edge_train.graph.lowering.activations import kept_scale
from edge_train.graph.lowering.builder import Builder
from edge_train.graph.lowering.dropouts import biased_softmax
from edge_train.graph.lowering.registry import fused_rule_for, fuses

#: the places of ratio and training_mode among the inputs; -1: there is none, it trains
_FORWARD = {
    "Dropout": (1, 2),
    "BitmaskDropout": (1, 2),
    "BiasDropout": (3, 4),
    "BitmaskBiasDropout": (3, 4),
    "BiasSoftmaxDropout": (2, -1),
}
_GRADIENTS = {"DropoutGrad": (2, 3), "BitmaskDropoutGrad": (2, 3), "SoftmaxDropoutGrad": (3, -1)}


@fuses("Dropout", domain="")
@fuses("BitmaskDropout")
def dropout(b: Builder, node: ir.Node) -> tuple[str, ...] | None:
    return (_drawn(b, node, node.inputs[0]),) if _fits(b) else None


@fuses("BiasDropout", "BitmaskBiasDropout")
def bias_dropout(b: Builder, node: ir.Node) -> tuple[str, ...] | None:
    if not _fits(b):
        return None
    x, bias, residual = (*node.inputs, "")[:3]
    y = _drawn(b, node, b.add(x, bias))
    return (b.add(y, residual) if residual else y,)


@fuses("BiasSoftmaxDropout")
def bias_softmax_dropout(b: Builder, node: ir.Node) -> tuple[str, ...] | None:
    if not _fits(b):
        return None
    softmax = biased_softmax(b, node)
    return _drawn(b, node, softmax), "", softmax


@fuses("DropoutGrad")
def dropout_grad(b: Builder, node: ir.Node) -> tuple[str, ...] | None:
    """From the seed; else from the mask, a byte an element, where somebody else wants it."""
    dy, mask = node.inputs[:2]
    seed = b.saved.get(b.node.input(1))
    if seed:
        return (_seeded(b, node, seed),)
    if b.elem_type(mask) != dtypes.BOOL:
        return None
    scale = kept_scale(b, dy, node.input(2), node.input(3))
    return b.native("Dropped", dy, mask, scale, like=(dy,))


@fuses("BitmaskDropoutGrad")
def bitmask_dropout_grad(b: Builder, node: ir.Node) -> tuple[str, ...] | None:
    seed = b.saved.get(b.node.input(1))
    return (_seeded(b, node, seed),) if seed else None


@fuses("SoftmaxDropoutGrad")
def softmax_dropout_grad(b: Builder, node: ir.Node) -> tuple[str, ...] | None:
    seed, y = b.saved.get(b.node.input(1)), node.inputs[2]
    rank = b.shapes.rank(y)
    if not seed or rank is None:
        return None
    axes = rank - node.attr("axis", 1) % rank
    return b.native("SoftmaxGrad", _seeded(b, node, seed), y, like=(y,), axes=axes)


def _drawn(b: Builder, node: ir.Node, x: str) -> str:
    """The forward kernel; its seed is left for the gradients under the name of the mask."""
    ratio, mode = _options(node, _FORWARD)
    own = node.attr("seed")
    attributes = {} if own is None else {"seed": [own]}
    mode = mode or b.const(np.array(True))
    y, seed = b.native("DrawnDropout", x, ratio, mode, like=(x, ""), **attributes)
    b.shapes.set(seed, dtypes.INT64, (1,))
    if b.node.output(1):
        b.saved[b.node.output(1)] = seed
    return y


def _seeded(b: Builder, node: ir.Node, seed: str) -> str:
    dy = node.inputs[0]
    return b.native("SeededDropout", dy, seed, *_options(node, _GRADIENTS), like=(dy,))[0]


def _options(node: ir.Node, places: dict[str, tuple[int, int]]) -> tuple[str, str]:
    """The ratio and the training_mode that a node reads."""
    ratio, mode = places[node.op_type]
    return node.input(ratio), node.input(mode) if mode >= 0 else ""


def _fits(b: Builder) -> bool:
    """Whether nobody but gradients by our kernels, of the same options, reads the node's mask."""
    mask, mode = b.node.output(1), _options(b.node, _FORWARD)[1]
    always = b.node.op_type == "BiasSoftmaxDropout" or _is(b, mode, True)
    if b.prefix != Builder.prefix or not (always or mode) or _is(b, mode, False):
        return False
    if not mask:
        return True
    if b.is_output(mask):
        return False
    return all(_follows(b, reader, mask, always) for reader in b.readers(mask))


def _follows(b: Builder, reader: ir.Node, mask: str, always: bool) -> bool:
    if reader.domain != ir.MICROSOFT or reader.op_type not in _GRADIENTS:
        return False
    if [i for i, name in enumerate(reader.inputs) if name == mask] != [1]:
        return False
    if fused_rule_for(b, reader) is None:
        return False
    if reader.op_type == "SoftmaxDropoutGrad" and b.shapes.rank(reader.input(2)) is None:
        return False
    (ratio, mode), (own, switch) = _options(b.node, _FORWARD), _options(reader, _GRADIENTS)
    switched = mode == switch or (always and (not switch or _is(b, switch, True)))
    return switched and _equal(b, ratio, own)


def _equal(b: Builder, one: str, other: str) -> bool:
    if one == other:
        return True
    known, other_known = b.constant_value(one), b.constant_value(other)
    if known is None or other_known is None:
        return False
    return np.array_equal(known, other_known)


def _is(b: Builder, mode: str, value: bool) -> bool:
    known = b.constant_value(mode) if mode else None
    return known is not None and bool(np.all(known)) is value
