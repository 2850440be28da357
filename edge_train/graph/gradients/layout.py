"""Ops that move data without computing: reshaping, joining, cutting, repeating, padding."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edge_train import dtypes
from edge_train.graph import ir
from edge_train.graph.formula import Refuse
from edge_train.graph.gradients.builder import Gradients
from edge_train.graph.gradients.registry import gradient, no_gradient, refuse

no_gradient(
    "Shape", "Size", "Constant", "ConstantOfShape", "Range", "EyeLike",
    "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli",
    "Multinomial", "SequenceLength",
)  # fmt: skip

for _op in ("If", "Loop"):
    refuse(
        _op,
        "control flow has no gradient here; export the model without it (a fixed sequence length "
        "unrolls a loop, a constant condition folds an If), or keep trained parameters out of it",
    )
for _op in (
    "ConcatFromSequence", "SequenceAt", "SequenceConstruct", "SequenceInsert", "SequenceErase",
    "SequenceMap", "SplitToSequence",
):  # fmt: skip
    refuse(_op, "sequences have no gradient here; use Concat, Split or Gather on tensors")
for _op in ("Optional", "OptionalGetElement"):
    refuse(_op, "optional values have no gradient here; pass the tensor itself")


@gradient("Reshape", "Flatten", cut=(1,), quantized=True)
def reshape(g: Gradients, node: ir.Node, dy: str) -> str:
    return g.reshape_like(dy, node.inputs[0])


@gradient("Squeeze", cut=(1,), quantized=True)
def squeeze(g: Gradients, node: ir.Node, dy: str) -> str:
    if not node.input(1):
        return g.reshape_like(dy, node.inputs[0])
    return g.op("Unsqueeze", dy, node.inputs[1])


@gradient("Unsqueeze", cut=(1,), quantized=True)
def unsqueeze(g: Gradients, node: ir.Node, dy: str) -> str:
    return g.op("Squeeze", dy, node.inputs[1])


@gradient("Transpose", quantized=True)
def transpose(g: Gradients, node: ir.Node, dy: str) -> str:
    perm = node.attr("perm")
    if perm is None:  # the axes are reversed: its own inverse
        return g.op("Transpose", dy)
    return g.op("Transpose", dy, perm=[int(axis) for axis in np.argsort(perm)])


@gradient("Concat")
def concat(g: Gradients, node: ir.Node, dy: str) -> Sequence[str]:
    """The forward node also says how long each part is along the axis."""
    axis, lengths = node.attr("axis", 0), f"{node.outputs[0]}_per_input_length"
    outputs = (node.outputs[0], lengths)
    name, count = f"{node.name}_training", len(node.inputs)
    joined = ir.make_node("ConcatTraining", node.inputs, outputs, name, ir.MICROSOFT, axis=axis)
    g.replace(node, joined)
    g.shapes.set(lengths, dtypes.INT64, (count,))
    g.shapes.infer_node(joined)
    return g.ops("SplitTraining", dy, lengths, n=count, domain=ir.MICROSOFT, axis=axis)


@gradient("Split", cut=(1,))
def split(g: Gradients, node: ir.Node, *dys: str) -> str:
    """The parts joined again; a part that no one needs counts as zeros of its size."""
    x = node.inputs[0]
    parts = []
    for index, dy in enumerate(dys):
        part = g.extra_output(node, index, f"part_{index}", g.elem_type(x))
        parts.append(dy or g.zeros(g.shape(part), x))
    return g.op("Concat", *parts, axis=node.attr("axis", 0))


@gradient("Expand", cut=(1,), broadcasts=True)
def expand(g: Gradients, node: ir.Node, dy: str) -> Sequence[str]:
    return (dy,)


@gradient("Tile", cut=(1,))
def tile(g: Gradients, node: ir.Node, dy: str) -> str:
    """dY seen as (repeat, size) for every axis, summed over the repeats."""
    x, repeats = node.inputs
    rank = g.rank(x)
    counts, sizes = g.constant_value(repeats), g.constant_value(g.shape(x))
    if counts is not None and sizes is not None:
        grid = g.ints(*np.stack([counts, sizes], 1).ravel().tolist())
    else:
        columns = (g.op("Unsqueeze", name, g.ints(-1)) for name in (repeats, g.shape(x)))
        grid = g.op("Reshape", g.op("Concat", *columns, axis=1), g.ints(-1))
    return g.sum(g.op("Reshape", dy, grid), range(0, 2 * rank, 2), keepdims=False)


@gradient("Pad", cut=(1, 3))
def pad(g: Gradients, node: ir.Node, dy: str) -> Sequence[str | None]:
    """Padding with a constant is undone by cutting; what was cut comes back as zeros."""
    pads, axes = node.inputs[1], node.input(3)
    if node.attr("mode", "constant") != "constant":
        return [_mirrored(g, node, dy)]
    where = (pads, "", axes) if axes else (pads,)
    dx = g.op("Pad", dy, g.op("Neg", pads), *where[1:])
    if not g.wants(2):
        return [dx]
    added = g.sub(dy, g.op("Pad", dx, *where))
    return dx, None, g.op("ReduceSum", added, keepdims=0)


def _mirrored(g: Gradients, node: ir.Node, dy: str) -> str:
    """Along each axis reflect, edge and wrap gather from the input: at the padded positions."""
    x, y = node.inputs[0], node.outputs[0]
    rank = g.rank(x)
    axes = _pad_axes(g, node, rank)
    pads = g.constant_value(node.inputs[1])
    # from the last axis to the first: the sizes of the later ones are then those of the input
    for place in sorted(range(len(axes)), key=axes.__getitem__, reverse=True):
        if pads is not None and not (pads[place] or pads[place + len(axes)]):
            continue
        axis, ends = axes[place], g.ints(place, place + len(axes))
        count = g.op("Reshape", g.shape_slice(x, axis, axis + 1), g.const(np.zeros(0, np.int64)))
        zero, one = (g.const(np.array(value, np.int64)) for value in (0, 1))
        numbers = g.op("Range", zero, count, one, elem_type=dtypes.INT64)
        around = g.op("Gather", node.inputs[1], ends)
        index = g.op("Pad", numbers, around, mode=node.attr("mode"))
        head = [g.shape_slice(y, 0, axis)] if axis else []
        shape = g.concat_ints(*head, g.shape_slice(x, axis, rank))
        dy = g.op(
            "GatherGrad", shape, index, dy, elem_type=g.elem_type(x), domain=ir.MICROSOFT, axis=axis
        )
    return dy


def _pad_axes(g: Gradients, node: ir.Node, rank: int) -> list[int]:
    """The padded axes in the order in which the pads list them."""
    if not node.input(3):
        return list(range(rank))
    axes = g.constant_value(node.inputs[3])
    if axes is None:
        raise Refuse(f"mode {node.attr('mode')} with axes that are computed")
    return [int(axis) % rank for axis in axes]


@gradient("Slice", cut=(1, 2, 3, 4))
def slice_(g: Gradients, node: ir.Node, dy: str) -> str:
    x, steps = node.inputs[0], node.input(4)
    sizes = g.constant_value(steps) if steps else np.ones(1, np.int64)
    if sizes is None or sizes.min(initial=1) < 1:
        return _backwards_slice(g, node, dy)
    return g.op("SliceGrad", dy, g.shape(x), *node.inputs[1:], domain=ir.MICROSOFT)


def _backwards_slice(g: Gradients, node: ir.Node, dy: str) -> str:
    """Number the elements, cut the numbers the same way, put dY there: SliceGrad of
    onnxruntime-training stops where a slice runs back to the front."""
    x = node.inputs[0]
    count = g.op("Size", x, elem_type=dtypes.INT64)
    zero, one = (g.const(np.array(value, np.int64)) for value in (0, 1))
    numbers = g.reshape_like(g.op("Range", zero, count, one, elem_type=dtypes.INT64), x)
    cut = g.op("Reshape", g.op("Slice", numbers, *node.inputs[1:]), g.ints(-1))
    blank = g.zeros(g.op("Reshape", count, g.ints(1)), dy)
    placed = g.op("ScatterElements", blank, cut, g.op("Reshape", dy, g.ints(-1)), axis=0)
    return g.reshape_like(placed, x)


@gradient("Trilu", cut=(1,))
def trilu(g: Gradients, node: ir.Node, dy: str) -> str:
    return g.op("Trilu", dy, *node.inputs[1:], upper=node.attr("upper", 1))


@gradient("ReverseSequence", cut=(1,))
def reverse_sequence(g: Gradients, node: ir.Node, dy: str) -> str:
    axes = {name: node.attr(name) for name in ("batch_axis", "time_axis")}
    return g.op("ReverseSequence", dy, node.inputs[1], **axes)


@gradient("CenterCropPad", cut=(1,))
def center_crop_pad(g: Gradients, node: ir.Node, dy: str) -> str:
    """Cropping and padding round the same way, so one undoes the other."""
    x, axes = node.inputs[0], node.attr("axes")
    sizes = g.shape(x)
    if axes is not None:
        rank = g.rank(x)
        sizes = g.concat_ints(*(g.shape_slice(x, a % rank, a % rank + 1) for a in axes))
    return g.op("CenterCropPad", dy, sizes, axes=axes)
