"""Resampling. Interpolation is linear along each axis: y = A x, so dX = A^T dY, and A is what
Resize itself makes of an identity matrix. Every mode comes out as onnxruntime has it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from edge_train import dtypes
from edge_train.graph import ir
from edge_train.graph.formula import Refuse
from edge_train.graph.gradients.builder import Gradients, attributes_of
from edge_train.graph.gradients.registry import gradient, refuse

refuse("GridSample", "it has no gradient here; use Resize where the grid is regular")
refuse("AffineGrid", "it has no gradient here; keep trained parameters out of it")

_CROP = "tf_crop_and_resize"
_HALF_PIXEL = ("half_pixel", "pytorch_half_pixel", "half_pixel_symmetric")


@gradient("Resize", cut=(1, 2, 3))
def resize(g: Gradients, node: ir.Node, dy: str) -> str:
    x = node.inputs[0]
    rank = g.rank(x)
    axes = [axis % rank for axis in node.attr("axes") or range(rank)]
    if node.attr("keep_aspect_ratio_policy", "stretch") != "stretch":
        inputs = (dy, x, node.input(1), node.input(2))
        return g.training_op("ResizeGrad", *inputs, makes=(True,), **attributes_of(node))[0]
    tiles = _tiles(g, node, axes)
    if tiles:
        mean = g.op("AveragePool", dy, kernel_shape=tiles, strides=tiles)
        return g.mul(mean, float(math.prod(tiles)))
    for place in reversed(range(len(axes))):
        if not _is_kept(g, node, axes, place):
            dy = _contracted(g, dy, _weights(g, node, axes, place), axes[place], rank)
    return dy


def _factor(g: Gradients, node: ir.Node, axes: list[int], place: int) -> float | None:
    """By how much an axis is enlarged; None where only the run tells."""
    if _scales(node):
        scales = g.constant_value(node.inputs[2])
        return None if scales is None else float(scales[place])
    before, after = (g.dims(name)[axes[place]] for name in (node.inputs[0], node.outputs[0]))
    if before is not None and before == after:
        return 1.0
    return after / before if isinstance(before, int) and isinstance(after, int) else None


def _scales(node: ir.Node) -> str:
    """The input scales; it may be given empty beside sizes."""
    return "" if node.input(3) else node.input(2)


def _tiles(g: Gradients, node: ir.Node, axes: list[int]) -> list[int]:
    """How often each spatial axis repeats every element, where that is all that Resize does."""
    mode, rounding = (node.attr(*item) for item in (("mode", "nearest"), _ROUNDING))
    place = node.attr("coordinate_transformation_mode", "half_pixel")
    tiled = (place == "asymmetric" and rounding == "floor") or (
        place in _HALF_PIXEL and rounding.startswith("round_prefer")
    )
    spatial = g.rank(node.inputs[0]) - 2
    if mode != "nearest" or not tiled or spatial not in (1, 2, 3):
        return []
    factors = {axis: _factor(g, node, axes, at) for at, axis in enumerate(axes)}
    found = [factors.get(axis, 1.0) for axis in range(2 + spatial)]
    if any(factor is None or factor < 1 or factor % 1 for factor in found) or found[:2] != [1, 1]:
        return []
    return [int(factor or 1) for factor in found[2:]]


_ROUNDING = ("nearest_mode", "round_prefer_floor")


def _is_kept(g: Gradients, node: ir.Node, axes: list[int], place: int) -> bool:
    """Whether an axis passes through unchanged."""
    if _factor(g, node, axes, place) != 1.0:
        return False
    if node.attr("coordinate_transformation_mode") != _CROP:
        return True
    roi = g.constant_value(node.input(1))
    return roi is not None and roi[place] == 0 and roi[place + len(axes)] == 1


def _weights(g: Gradients, node: ir.Node, axes: list[int], place: int) -> str:
    """(out, in): what each output element takes from each input element along an axis."""
    x, axis = node.inputs[0], axes[place]
    size = g.shape_slice(x, axis, axis + 1)
    square = g.zeros(g.concat_ints(size, size), g.const(np.zeros(0, np.float32)))
    eye = g.reshape(g.op("EyeLike", square), 1, 1, size, size)
    if _scales(node):
        to: tuple[str, ...] = (_framed(g, node.inputs[2], place, (1.0, 1.0), (1.0,)),)
    else:
        y = node.outputs[0]
        to = ("", g.concat_ints(1, 1, g.shape_slice(y, axis, axis + 1), size))
    roi = ""
    if node.attr("coordinate_transformation_mode") == _CROP:
        if not node.input(1):
            raise Refuse("tf_crop_and_resize without the input roi")
        ends = ((place, (0.0, 0.0), (0.0,)), (place + len(axes), (1.0, 1.0), (1.0,)))
        parts = [_framed(g, node.inputs[1], *end) for end in ends]
        roi = g.op("Concat", *parts, axis=0)
    table = g.op("Resize", eye, roi, *to, **_same_kernel(node))
    return g.cast_like(g.op("Squeeze", table, g.ints(0, 1)), x)


def _framed(
    g: Gradients, values: str, place: int, before: tuple[float, ...], after: tuple[float, ...]
) -> str:
    """One number of a list as float32, between others."""
    known = g.constant_value(values)
    if known is not None:
        return g.const(np.array([*before, known[place], *after], np.float32))
    one = g.cast(g.op("Gather", values, g.ints(place), axis=0), dtypes.FLOAT)
    ends = (g.const(np.array(end, np.float32)) for end in (before, after))
    return g.op("Concat", next(ends), one, next(ends), axis=0)


def _same_kernel(node: ir.Node) -> dict[str, Any]:
    """The attributes of Resize; what lies outside a crop is a constant, without slope."""
    left_out = ("axes", "keep_aspect_ratio_policy", "extrapolation_value")
    return {name: value for name, value in attributes_of(node).items() if name not in left_out}


def _contracted(g: Gradients, dy: str, weights: str, axis: int, rank: int) -> str:
    """Axis ``axis`` (out) of dy replaced by (in): summed against the weights (out, in)."""
    if axis == rank - 1:
        return g.op("MatMul", dy, weights)
    turned = g.transpose(weights, 1, 0)
    if axis == rank - 2:
        return g.op("MatMul", turned, dy)
    flat = g.reshape(dy, *(0,) * (axis + 1), -1)
    rest = g.shape_slice(dy, axis + 1, rank)
    return g.reshape(g.op("MatMul", turned, flat), *(0,) * (axis + 1), rest)


@gradient("DepthToSpace")
def depth_to_space(g: Gradients, node: ir.Node, dy: str) -> str:
    """SpaceToDepth undoes the mode DCR; CRD has the channel in front of the block."""
    x, size = node.inputs[0], node.attr("blocksize")
    if node.attr("mode", "DCR") == "DCR":
        return g.op("SpaceToDepth", dy, blocksize=size)
    height, width = (g.shape_slice(x, axis, axis + 1) for axis in (2, 3))
    blocks = g.reshape(dy, 0, -1, height, size, width, size)  # (N, C, H, b, W, b)
    return g.reshape_like(g.transpose(blocks, 0, 1, 3, 5, 2, 4), x)


@gradient("SpaceToDepth")
def space_to_depth(g: Gradients, node: ir.Node, dy: str) -> str:
    return g.op("DepthToSpace", dy, blocksize=node.attr("blocksize"), mode="DCR")
