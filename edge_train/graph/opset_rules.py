"""How ONNX ops changed from opset 12 to 21: one rule an op, with the opset of its last change.
opset_rules_old has the ops that changed before.

A rule returns the nodes that replace an older node. ``s`` is the opset.Scope of the graph.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from edge_train import dtypes
from edge_train.graph import ir

if TYPE_CHECKING:
    from edge_train.graph.opset import Scope

Rule: TypeAlias = "Callable[[Scope, ir.Node], list[ir.Node]]"

#: op -> (the opset it changed at, the rule for older nodes)
RULES: dict[str, tuple[int, Rule]] = {}


class Unraisable(Exception):
    """This form of an op does not exist any more; the text is the reason."""


def rule(since: int, *op_types: str) -> Callable[[Rule], Rule]:
    """Registers the decorated function for nodes of the ops that are older than ``since``."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(op_types, (since, function)))
        return function

    return register


def without(node: ir.Node, *names: str) -> dict[str, ir.Attribute]:
    """The attributes of a node but for the named ones."""
    return {key: value for key, value in node.attributes.items() if key not in names}


def with_attribute(node: ir.Node, name: str, value: int | str) -> ir.Node:
    """The node with one attribute set."""
    return replace(node, attributes={**node.attributes, name: ir.Attribute.of(name, value)})


def _axes_as_input(s: Scope, node: ir.Node) -> list[ir.Node]:
    axes = node.attr("axes")
    if axes is None:
        return [node]
    inputs = (node.input(0), s.const(axes))
    return [replace(node, inputs=inputs, attributes=without(node, "axes"))]


rule(13, "Squeeze", "Unsqueeze")(_axes_as_input)


@rule(13, "ReduceSum")
@rule(
    18,
    *("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean"),
    *("ReduceMin", "ReduceProd", "ReduceSumSquare"),
)
def _reduce(s: Scope, node: ir.Node) -> list[ir.Node]:
    if not node.attr("axes"):  # none, or an empty list: all of them
        return [replace(node, attributes=without(node, "axes"))]
    return _axes_as_input(s, node)


@rule(18, "Split")
def _split(s: Scope, node: ir.Node) -> list[ir.Node]:
    sizes = node.attr("split")
    if sizes is not None:
        inputs = (node.input(0), s.const(sizes))
        return [replace(node, inputs=inputs, attributes=without(node, "split"))]
    if node.input(1):
        return [node]
    return [with_attribute(replace(node, inputs=node.inputs[:1]), "num_outputs", len(node.outputs))]


@rule(13, "Softmax", "LogSoftmax", "Hardmax")
def _softmax(s: Scope, node: ir.Node) -> list[ir.Node]:
    """Used to work on the input flattened to 2-D at an axis, 1 by default."""
    axis, rank = node.attr("axis", 1), s.shapes.rank(node.input(0))
    if axis == -1 or (rank is not None and axis == rank - 1):
        return [with_attribute(node, "axis", axis)]
    x, y = node.input(0), node.output(0)
    flat = s.node("Flatten", x, like=node, axis=axis)
    shape = s.node("Shape", x, like=node)
    rows = s.fresh(f"{y}/rows")
    inner = with_attribute(replace(node, inputs=(flat.output(0),), outputs=(rows,)), "axis", 1)
    name = s.fresh(f"{y}/Reshape")
    back = ir.make_node("Reshape", (rows, shape.output(0)), (y,), name, allowzero=1)
    return [flat, shape, inner, back]


@rule(14, "BatchNormalization")
def _batch_norm(s: Scope, node: ir.Node) -> list[ir.Node]:
    """Five outputs used to mean training; the last two (statistics of the batch) are gone."""
    if not node.attr("spatial", 1):
        raise Unraisable("statistics for each place (spatial 0) ended with opset 9")
    if any(s.is_read(name) for name in node.outputs[3:]):
        raise Unraisable("its outputs saved_mean and saved_var, which are read, ended at opset 14")
    training = int(any(node.outputs[1:]))
    node = replace(
        node,
        outputs=node.outputs[: 3 if training else 1],
        attributes=without(node, "spatial"),
    )
    return [with_attribute(node, "training_mode", training)]


@rule(16, "RoiAlign")
def _roi_align(s: Scope, node: ir.Node) -> list[ir.Node]:
    return [with_attribute(node, "coordinate_transformation_mode", "output_half_pixel")]


def older_resize(s: Scope, node: ir.Node, scales: str) -> list[ir.Node]:
    """Resize of opset 10, and Upsample: positions are multiplied by 1/scale.

    onnxruntime rounds the positions down where the image grows and up where it shrinks.
    """
    mode = {"bilinear": "linear"}.get(node.attr("mode", "nearest"), node.attr("mode", "nearest"))
    rounding = "floor"
    if mode == "nearest":
        factors = s.numbers(scales)
        shrinks = factors is not None and bool((factors < 1).any())
        if factors is not None and shrinks and (factors > 1).any():
            raise Unraisable("its scales shrink some axes and grow others")
        rounding = "ceil" if shrinks else "floor"
    return [
        ir.make_node(
            "Resize", (node.input(0), "", scales), node.outputs, node.name, mode=mode,
            coordinate_transformation_mode="asymmetric", nearest_mode=rounding,
        )
    ]  # fmt: skip


@rule(13, "Resize")
def _resize(s: Scope, node: ir.Node) -> list[ir.Node]:
    """``scales`` used to be required and was given empty beside ``sizes``."""
    if s.version < 11:
        return older_resize(s, node, node.input(1))
    if node.attr("coordinate_transformation_mode") == "tf_half_pixel_for_nn":
        raise Unraisable("coordinate_transformation_mode tf_half_pixel_for_nn ended with opset 13")
    if not node.input(3):
        return [node]
    return [replace(node, inputs=(*node.inputs[:2], "", node.input(3)))]


@rule(20, "GridSample")
def _grid_sample(s: Scope, node: ir.Node) -> list[ir.Node]:
    mode = node.attr("mode", "bilinear")
    return [
        with_attribute(node, "mode", {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode))
    ]


@rule(20, "DFT")
def _dft(s: Scope, node: ir.Node) -> list[ir.Node]:
    # the axis is an input now, a scalar
    axis = s.node("Constant", like=node, value_int=node.attr("axis", 1))
    inputs = (node.input(0), node.input(1), axis.output(0))
    return [axis, replace(node, inputs=inputs, attributes=without(node, "axis"))]


@rule(21, "GroupNormalization")
def _group_norm(s: Scope, node: ir.Node) -> list[ir.Node]:
    """``scale`` and ``bias`` were per group and are per channel now."""
    groups, x = node.attr("num_groups"), node.input(0)
    if not isinstance(groups, int):
        raise Unraisable("it lacks the attribute num_groups")
    channels = s.node("Shape", x, like=node, start=1, end=2)
    width = s.node("Div", channels.output(0), s.const([groups]), like=node)
    grid = s.node("Concat", s.const([groups]), width.output(0), like=node, axis=0)
    nodes, names = [channels, width, grid], []
    for name in (node.input(1), node.input(2)):
        column = s.node("Unsqueeze", name, s.const([1]), like=node)
        spread = s.node("Expand", column.output(0), grid.output(0), like=node)
        flat = s.node("Reshape", spread.output(0), s.const([-1]), like=node)
        nodes += [column, spread, flat]
        names.append(flat.output(0))
    return [*nodes, replace(node, inputs=(x, *names))]


# --- ops that are newer than the target ----------------------------------------------------------


def _rms_norm(s: Scope, node: ir.Node) -> list[ir.Node]:
    """x / sqrt(mean(x^2) + eps) * scale over the axes from ``axis`` on, half precision widened."""
    nodes: list[ir.Node] = []

    def add(op_type: str, *inputs: str, **attributes: int) -> str:
        nodes.append(s.node(op_type, *inputs, like=node, **attributes))
        return nodes[-1].output(0)

    x, axis = node.input(0), node.attr("axis", -1)
    rank, kind = s.shapes.rank(x), s.shapes.elem_type(x) or dtypes.FLOAT
    if axis >= 0 and rank is None:
        raise Unraisable(f"the rank of '{x}' is not known")
    half = kind in (dtypes.FLOAT16, dtypes.BFLOAT16)
    wide = add("Cast", x, to=dtypes.FLOAT) if half else x
    kept = dtypes.NUMPY[dtypes.FLOAT if half else kind]
    axes = s.const(range(axis - (rank or 0) if axis >= 0 else axis, 0))
    mean = add("ReduceMean", add("Mul", wide, wide), axes)
    nodes.append(s.constant(np.array(node.attr("epsilon", 1e-5), kept), node))
    normed = add("Div", wide, add("Sqrt", add("Add", mean, nodes[-1].output(0))))
    normed = add("Cast", normed, to=kind) if half else normed
    return [*nodes, ir.make_node("Mul", (normed, node.input(1)), node.outputs, node.name)]


def _swish(s: Scope, node: ir.Node) -> list[ir.Node]:
    """x sigmoid(alpha x)."""
    x, alpha, nodes = node.input(0), node.attr("alpha", 1.0), []
    inner = x
    if alpha != 1.0:
        kind = dtypes.NUMPY[s.shapes.elem_type(x) or dtypes.FLOAT]
        nodes = [s.constant(np.array(alpha, kind), node)]
        nodes.append(s.node("Mul", x, nodes[0].output(0), like=node))
        inner = nodes[1].output(0)
    gate = s.node("Sigmoid", inner, like=node)
    return [*nodes, gate, ir.make_node("Mul", (x, gate.output(0)), node.outputs, node.name)]


def _pool(s: Scope, node: ir.Node) -> list[ir.Node]:
    """ceil_mode where it adds no window to an axis, because that one would lie in the padding.

    Opset 22 leaves it out; opset 21 counts it, in the sizes that every onnxruntime works out before
    a run, and up to 1.20 in the run too.
    """
    auto_pad, sizes = node.attr("auto_pad") or "NOTSET", (s.shapes.dims(node.input(0)) or ())[2:]
    if not node.attr("ceil_mode", 0) or not sizes or auto_pad.startswith("SAME"):
        return [node]
    count, kernel = len(sizes), node.attr("kernel_shape")
    strides, dilations = (node.attr(name) or (1,) * count for name in ("strides", "dilations"))
    given = None if auto_pad == "VALID" else node.attr("pads")
    pads, left_out = list(given or (0,) * (2 * count)), False
    for axis, size in enumerate(sizes):
        if not isinstance(size, int):
            return [node]
        stride, behind = strides[axis], axis + count
        room = size + pads[axis] + pads[behind] - dilations[axis] * (kernel[axis] - 1) - 1
        missing = -room % stride
        if missing and room + missing >= size + pads[axis]:
            left_out = True
        else:
            pads[behind] += missing
    grown = pads != list(given or (0,) * (2 * count))
    fits = all(pad < k for pad, k in zip(pads, (*kernel, *kernel), strict=True))
    if not left_out or (grown and (node.attr("count_include_pad", 0) or not fits)):
        return [node]
    attributes = without(node, "ceil_mode", "auto_pad")
    return [replace(node, attributes={**attributes, "pads": ir.Attribute.of("pads", pads)})]


#: op -> the rule that writes it in ops of the target
NEWER: dict[str, Rule] = {
    "RMSNormalization": _rms_norm,
    "Swish": _swish,
    **dict.fromkeys(("AveragePool", "LpPool", "MaxPool"), _pool),
}
