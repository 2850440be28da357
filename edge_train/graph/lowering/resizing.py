"""ResizeGrad: interpolation is linear along each axis, so dX = W^T dY along each resized axis.

W (out, in) holds what each output element takes from each input element. It is written with
standard ops from the sizes; onnxruntime folds it at load where they are fixed. Coordinates are
computed in float32 in the order in which onnxruntime's Resize computes them, so that ties and
floors fall the same way.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edge_train import dtypes
from edge_train.graph import ir
from edge_train.graph.lowering.builder import Builder, Refuse
from edge_train.graph.lowering.registry import lowers

#: reach of the kernel in input elements where nothing is smoothed
_REACH = {"linear": 1, "cubic": 2}


@dataclass(frozen=True)
class _Axis:
    """One axis: float32 tensors of one element, and the form of the interpolation."""

    scale: str
    size: str  # of the input
    resized: str  # of the output
    start: str  # region of interest, "" where there is none
    end: str
    node: ir.Node

    @property
    def mode(self) -> str:
        return str(self.node.attr("mode", "nearest"))

    @property
    def crops(self) -> bool:
        return bool(self.node.attr("coordinate_transformation_mode") == "tf_crop_and_resize")


@lowers("ResizeGrad")
def resize_grad(b: Builder, node: ir.Node) -> str:
    """dX: along each axis that is resized, dY times the weights of the interpolation."""
    dy, x = node.inputs[:2]
    mode, rank = node.attr("mode", "nearest"), b.rank(x)
    if mode not in ("nearest", "linear", "cubic"):
        raise Refuse(f"mode is '{mode}'; expected nearest, linear or cubic")
    axes = [axis % rank for axis in node.attr("axes") or range(rank)]
    scales = _Scales(b, node, axes)
    for place in reversed(range(len(axes))):
        if not scales.is_one(place):
            weights = _weights(b, _axis(b, node, scales, place))
            dy = _contracted(b, dy, b.cast_like(weights, dy), axes[place], rank)
    return b.reshape_like(dy, x)


class _Scales:
    """The factor of each resized axis: given, or the ratio of the sizes."""

    def __init__(self, b: Builder, node: ir.Node, axes: list[int]) -> None:
        self._b, self._node, self.axes = b, node, axes
        self._given = node.input(3)
        if self._given and b.shapes.dims(self._given) == (0,):
            self._given = ""
        self._values = b.constant_value(self._given) if self._given else None
        self._shared = ""
        policy = node.attr("keep_aspect_ratio_policy", "stretch")
        if not self._given and policy != "stretch":
            self._shared = self._common(policy)

    def is_one(self, place: int) -> bool:
        """Whether an axis passes through unchanged."""
        crops = self._node.attr("coordinate_transformation_mode") == "tf_crop_and_resize"
        if self._values is not None or not self._given or (crops and self.axes[place] < 2):
            return self._batch_like(place)
        return False

    def _batch_like(self, place: int) -> bool:
        if self._values is not None:
            return bool(self._values[place] == 1)
        axis = self.axes[place]
        before, after = (self._b.dims(name)[axis] for name in (self._node.inputs[1], self._dy))
        if isinstance(before, int) and isinstance(after, int):
            return before == after
        # sizes that only the run tells: batch and channels are not resized, and if they were,
        # the last Reshape would fail
        return axis < 2 and self._b.rank(self._dy) > 2

    @property
    def _dy(self) -> str:
        return self._node.inputs[0]

    def of(self, place: int) -> str:
        """The factor as a float32 tensor of one element."""
        b = self._b
        if self._given:
            return b.op("Gather", b.cast(self._given, dtypes.FLOAT), b.ints(place))
        return self._shared or self._ratio(self._dy, place)

    def _ratio(self, resized: str, place: int) -> str:
        return self._b.div(self._size(resized, place), self._size(self._node.inputs[1], place))

    def _size(self, x: str, place: int) -> str:
        axis = self.axes[place]
        return self._b.cast(self._b.shape_slice(x, axis, axis + 1), dtypes.FLOAT)

    def _common(self, policy: str) -> str:
        """The one factor that keeps the aspect ratio within the forward node's ``sizes``."""
        b, forward = self._b, _forward_of(self._b)
        sizes = b.cast(forward.inputs[3], dtypes.FLOAT)
        ratios = [
            b.div(b.op("Gather", sizes, b.ints(place)), self._size(self._node.inputs[1], place))
            for place in range(len(self.axes))
        ]
        return b.op("Min" if policy == "not_larger" else "Max", *ratios)


def _forward_of(b: Builder) -> ir.Node:
    """The Resize that the gradient belongs to: dy is named after its output, the node after it."""
    y, owner = b.node.inputs[0].removesuffix("_grad"), b.node.name.rpartition("_Grad/")[0]
    for forward in b.nodes:
        named = forward.outputs[0] == y or (owner and forward.name == owner)
        if forward.op_type == "Resize" and named and forward.input(3):
            return forward
    raise Refuse(
        "keep_aspect_ratio_policy needs the sizes of its Resize, which is not in the graph"
    )


def _axis(b: Builder, node: ir.Node, scales: _Scales, place: int) -> _Axis:
    dy, x, roi = *node.inputs[:2], node.input(2)
    axis, count = scales.axes[place], len(scales.axes)
    size, resized = (b.cast(b.shape_slice(t, axis, axis + 1), dtypes.FLOAT) for t in (x, dy))
    start = end = ""
    if node.attr("coordinate_transformation_mode") == "tf_crop_and_resize":
        if not roi:
            raise Refuse("tf_crop_and_resize without the input roi")
        roi = b.cast(roi, dtypes.FLOAT)
        start, end = (b.op("Gather", roi, b.ints(i)) for i in (place, place + count))
    return _Axis(scales.of(place), size, resized, start, end, node)


def _contracted(b: Builder, x: str, weights: str, axis: int, rank: int) -> str:
    """``x`` with its ``axis`` (out) replaced by (in): summed against ``weights`` (out, in)."""
    if axis == rank - 1:
        return b.op("MatMul", x, weights)
    if axis == rank - 2:
        return _from_left(b, weights, x)
    flat = b.reshape(x, *(0,) * (axis + 1), -1)
    back = b.shape_slice(x, axis + 1, rank)
    return b.reshape(_from_left(b, weights, flat), *(0,) * (axis + 1), back)


def _from_left(b: Builder, weights: str, x: str) -> str:
    """weights^T x over the last two axes of ``x``."""
    if b.elem_type(x) == dtypes.DOUBLE:
        # up to 1.20 onnxruntime folds Transposes into a product that it lacks in double
        return b.op("Einsum", x, weights, equation="...ow,oi->...iw")
    return b.op("MatMul", b.transpose(weights, 1, 0), x)


def _weights(b: Builder, axis: _Axis) -> str:
    place = _coordinates(b, axis)
    if axis.mode == "nearest":
        weights = _nearest(b, axis, place)
    else:
        weights = _kernel_weights(b, axis, place)
    if not axis.crops:
        return weights
    # outside the input a crop takes the extrapolation value, which has no gradient
    last = b.sub(axis.size, 1.0)
    inside = b.op("And", b.op("GreaterOrEqual", place, b.scalar(0, place)),
                  b.op("LessOrEqual", place, last))  # fmt: skip
    return b.masked(inside, weights)


def _numbers(b: Builder, first: str, end: str) -> str:
    """first, first + 1, ... below end, as float32; both are tensors of one element."""
    ends = [b.cast(b.op("Squeeze", value, b.ints(0)), dtypes.INT64) for value in (first, end)]
    one = b.const(np.array(1, np.int64))
    return b.cast(b.op("Range", *ends, one, elem_type=dtypes.INT64), dtypes.FLOAT)


def _zero(b: Builder) -> str:
    return b.const(np.zeros(1, np.float32))


def _coordinates(b: Builder, axis: _Axis) -> str:
    """Where each output element lies in the input: (out, 1)."""
    at = b.reshape(_numbers(b, _zero(b), axis.resized), -1, 1)
    kind = axis.node.attr("coordinate_transformation_mode", "half_pixel")
    place = _transformed(b, axis, at, kind)
    # onnxruntime leaves an axis of scale 1 as it is, whatever the region of interest says
    return b.where(b.equal(axis.scale, 1.0), at, place) if kind.startswith("tf_") else place


def _transformed(b: Builder, axis: _Axis, at: str, kind: str) -> str:
    scale, size, resized = axis.scale, axis.size, axis.resized
    spans = b.op("Max", b.sub(resized, 1.0), b.scalar(1, resized))
    if kind == "asymmetric":
        return b.div(at, scale)
    if kind == "align_corners":
        return b.div(b.mul(at, b.sub(size, 1.0)), spans)
    if kind == "tf_half_pixel_for_nn":
        return b.div(b.add(at, 0.5), scale)
    if kind == "tf_crop_and_resize":
        span = b.sub(size, 1.0)
        moved = b.div(b.mul(b.mul(at, b.sub(axis.end, axis.start)), span), spans)
        middle = b.mul(b.mul(b.add(axis.start, axis.end), 0.5), span)
        return b.where(b.equal(resized, 1.0), middle, b.add(b.mul(axis.start, span), moved))
    half = b.sub(b.div(b.add(at, 0.5), scale), 0.5)
    if kind == "half_pixel":
        return half
    if kind == "pytorch_half_pixel":
        return b.where(b.equal(resized, 1.0), 0.0, half)
    if kind == "half_pixel_symmetric":
        adjustment = b.div(resized, b.mul(scale, size))
        offset = b.mul(b.div(size, 2.0), b.sub(1.0, adjustment))
        return b.sub(b.add(offset, b.div(b.add(at, 0.5), scale)), 0.5)
    raise Refuse(f"coordinate_transformation_mode is '{kind}', which ONNX does not have")


def _nearest(b: Builder, axis: _Axis, place: str) -> str:
    """1 where an output element copies an input element."""
    kind = axis.node.attr("nearest_mode", "round_prefer_floor")
    if kind == "round_prefer_floor":
        index = b.op("Ceil", b.sub(place, 0.5))
    elif kind == "round_prefer_ceil":
        index = b.op("Floor", b.add(place, 0.5))
    elif kind in ("floor", "ceil"):
        index = b.op(kind.capitalize(), place)
    else:
        raise Refuse(f"nearest_mode is '{kind}', which ONNX does not have")
    bounded = b.op("Max", b.op("Min", index, b.sub(axis.size, 1.0)), _zero(b))
    return b.cast(b.equal(bounded, _numbers(b, _zero(b), axis.size)), dtypes.FLOAT)


def _kernel_weights(b: Builder, axis: _Axis, place: str) -> str:
    """The kernel around each coordinate; what falls outside counts for the element at the border.

    With antialias a shrinking resize widens the kernel by 1 / scale.
    """
    node, reach = axis.node, _REACH[axis.mode]
    smooth = bool(node.attr("antialias", 0))
    width = b.op("Max", b.op("Reciprocal", axis.scale), b.scalar(1, axis.scale)) if smooth else ""
    # beyond the reach of the kernel every tap is outside: nearer coordinates give the same
    far = b.mul(width, float(reach)) if smooth else b.const(np.full(1, reach, np.float32))
    near = b.op("Max", b.op("Min", place, b.add(axis.size, b.sub(far, 1.0))), b.neg(far))
    margin = b.add(b.op("Ceil", b.mul(far, 2.0)), 1.0)
    taps = _numbers(b, b.neg(margin), b.add(axis.size, margin))
    distance = b.op("Abs", b.sub(taps, near))
    if smooth:
        distance = b.div(distance, width)
    weights = _triangle(b, distance) if axis.mode == "linear" else _cubic(b, distance, node)
    count = b.cast(margin, dtypes.INT64)
    end = b.add(count, b.cast(axis.size, dtypes.INT64))
    inner = _columns(b, weights, count, end)
    if not node.attr("exclude_outside", 0):
        low = b.sum(_columns(b, weights, b.ints(0), count), [1])
        high = b.sum(_columns(b, weights, end, b.add(end, count)), [1])
        grid = _numbers(b, _zero(b), axis.size)
        at_low, at_high = b.equal(grid, 0.0), b.equal(grid, b.sub(axis.size, 1.0))
        inner = b.add(inner, b.add(b.masked(at_low, low), b.masked(at_high, high)))
    if smooth or node.attr("exclude_outside", 0):
        return b.div(inner, b.sum(inner, [1]))
    return inner


def _columns(b: Builder, x: str, start: str, end: str) -> str:
    return b.op("Slice", x, start, end, b.ints(1))


def _triangle(b: Builder, distance: str) -> str:
    return b.op("Relu", b.sub(1.0, distance))


def _cubic(b: Builder, t: str, node: ir.Node) -> str:
    """(a+2) t^3 - (a+3) t^2 + 1 up to 1, a (t^3 - 5 t^2 + 8 t - 4) up to 2."""
    a = float(np.float32(node.attr("cubic_coeff_a", -0.75)))
    close = b.add(b.mul(b.mul(b.sub(b.mul(t, a + 2), a + 3), t), t), 1.0)
    apart = b.sub(b.mul(b.add(b.mul(b.sub(b.mul(t, a), 5 * a), t), 8 * a), t), 4 * a)
    outer = b.masked(b.op("Less", t, b.scalar(2, t)), apart)
    return b.where(b.op("LessOrEqual", t, b.scalar(1, t)), close, outer)
