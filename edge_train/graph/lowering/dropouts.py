"""Dropout, alone and fused with what stands around it, and masks packed into bits of integers.

The packed masks exist to save memory on a GPU. Here a forward op makes an ordinary mask; only a
mask that comes from outside the graph is unpacked.
"""

from __future__ import annotations

import numpy as np

from edge_train import dtypes
from edge_train.graph import ir
from edge_train.graph.lowering.activations import dropped, softmax_slope
from edge_train.graph.lowering.builder import Builder, Refuse
from edge_train.graph.lowering.registry import lowers

_BITS = 32


@lowers("BitmaskDropout")
def bitmask_dropout(b: Builder, node: ir.Node) -> tuple[str, ...]:
    _check_mask_readers(b, 1)
    return _dropout(b, node, node.inputs[0], node.inputs[1:])


@lowers("BiasDropout")
def bias_dropout(b: Builder, node: ir.Node) -> tuple[str, ...]:
    """dropout(data + bias) + residual, and the mask."""
    return _biased(b, node)


def _biased(b: Builder, node: ir.Node) -> tuple[str, str]:
    x, bias, residual = (*node.inputs, "")[:3]
    y, mask = _dropout(b, node, b.add(x, bias), node.inputs[3:])
    return b.add(y, residual) if residual else y, mask


@lowers("BitmaskBiasDropout")
def bitmask_bias_dropout(b: Builder, node: ir.Node) -> tuple[str, ...]:
    _check_mask_readers(b, 1)
    return _biased(b, node)


@lowers("BiasSoftmax")
def bias_softmax(b: Builder, node: ir.Node) -> str:
    return biased_softmax(b, node)


def biased_softmax(b: Builder, node: ir.Node) -> str:
    """Softmax of data + bias over all axes from ``axis`` on."""
    x, bias = node.inputs[:2]
    axis = node.attr("axis", 1) % b.rank(x)
    total = b.add(x, bias)
    if axis == b.rank(x) - 1:
        return b.op("Softmax", total, axis=axis)
    front = b.shape_slice(total, 0, axis) if axis else b.ints(1)
    return b.reshape_like(b.op("Softmax", b.reshape(total, front, -1), axis=-1), x)


@lowers("BiasSoftmaxDropout")
def bias_softmax_dropout(b: Builder, node: ir.Node) -> tuple[str, ...]:
    """The dropped softmax, the mask, and the softmax itself."""
    softmax = biased_softmax(b, node)
    training = b.const(np.array(True))
    y, mask = _dropout(b, node, softmax, (node.input(2), training))
    return y, mask, softmax


@lowers("SoftmaxDropoutGrad")
def softmax_dropout_grad(b: Builder, node: ir.Node) -> str:
    dy, mask, y = node.inputs[:3]
    before = dropped(b, dy, mask, node.input(3), "")
    rank = b.rank(y)
    return softmax_slope(b, before, y, range(node.attr("axis", 1) % rank, rank))


@lowers("BitmaskDropoutGrad")
def bitmask_dropout_grad(b: Builder, node: ir.Node) -> str:
    dy, mask = node.inputs[:2]
    if b.elem_type(mask) != dtypes.BOOL:
        mask = _unpacked(b, mask, dy)
    return dropped(b, dy, mask, node.input(2), node.input(3))


@lowers("Dropout", domain="")
def dropout(b: Builder, node: ir.Node) -> tuple[str, ...]:
    """The stock op, in training mode also where nobody reads its mask."""
    return _dropout(b, node, node.inputs[0], node.inputs[1:])


def _dropout(b: Builder, node: ir.Node, x: str, options: tuple[str, ...]) -> tuple[str, str]:
    """y and mask; ``options`` are ratio and training_mode, as the fused ops take them too.

    onnxruntime takes out a Dropout whose mask is not read, in training mode as well: then the
    values are made from the mask.
    """
    ratio, mode = (*options, "", "")[:2]
    training = b.constant_value(mode) if mode else np.array(False)
    read = b.is_read(b.node.output(1))
    if not read and training is not None and not np.any(training):
        return x, ""
    inputs = [x, b.cast(ratio, dtypes.FLOAT) if ratio else "", mode]
    y, mask = b.ops("Dropout", *inputs, n=2, seed=node.attr("seed"))
    return (y if read else dropped(b, x, mask, ratio, mode)), mask


def _check_mask_readers(b: Builder, index: int) -> None:
    """Refuse where somebody reads the bits themselves."""
    mask = b.node.output(index)
    if mask and any(value.name == mask for value in b.source.outputs):
        raise Refuse(f"its bit-packed mask '{mask}' is an output of the graph")
    for reader in b.source.consumers().get(mask, ()):
        if reader.op_type != "BitmaskDropoutGrad":
            raise Refuse(f"its bit-packed mask '{mask}' is read by {reader.describe()}")


def _unpacked(b: Builder, mask: str, like: str) -> str:
    """One bool an element of ``like``: element i is bit i % 32 of number i // 32."""
    places = b.const(np.arange(_BITS, dtype=np.uint32))
    shifted = b.op("BitShift", b.reshape(mask, -1, 1), places, direction="RIGHT")
    bits = b.op("BitwiseAnd", shifted, b.const(np.array(1, np.uint32)))
    flat = b.reshape(b.cast(bits, dtypes.BOOL), -1)
    count = b.op("ReduceProd", b.shape(like), keepdims=1)
    return b.reshape_like(b.op("Slice", flat, b.ints(0), count, b.ints(0)), like)
