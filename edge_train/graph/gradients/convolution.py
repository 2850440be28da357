"""Convolutions: cm.ConvGrad, for the transposed convolution with the roles exchanged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from edge_train.graph import ir
from edge_train.graph.formula import Refuse
from edge_train.graph.gradients.builder import Gradients, attributes_of
from edge_train.graph.gradients.registry import gradient, refuse
from edge_train.graph.same_pads import same_pads

_SAME = ("SAME_UPPER", "SAME_LOWER")

refuse("DeformConv", "its sampling positions have no gradient here; use Conv")
refuse("Col2Im", "it has no gradient here; use ConvTranspose, which folds and multiplies at once")


@gradient("Conv")
def conv(g: Gradients, node: ir.Node, dy: str) -> Sequence[str]:
    x, w = node.inputs[:2]
    attributes = attributes_of(node) | explicit_pads(g, node, g.dims(w)[2:])
    makes = [g.wants(index) for index in range(3)]
    return g.training_op("ConvGrad", dy, x, w, makes=makes, **attributes)


def explicit_pads(g: Gradients, node: ir.Node, kernel: Sequence[ir.Dim]) -> dict[str, Any]:
    """SAME_* of a node as numbers, which onnxruntime-training's gradient ops take for zeros;
    nothing for other padding, and where only the run tells the sizes."""
    if node.attr("auto_pad") not in _SAME:
        return {}
    geometry, pairs = _Geometry.of(node, kernel), []
    sizes = g.dims(node.inputs[0])[2:]
    for size, stride, extent in zip(sizes, geometry.strides, geometry.extent, strict=True):
        if not isinstance(size, int):
            if stride > 1:
                return {}
            size = extent
        pairs.append(same_pads(size, stride, extent, node.attr("auto_pad") == "SAME_LOWER"))
    before, behind = zip(*pairs, strict=True)
    return {"auto_pad": "NOTSET", "pads": [*before, *behind]}


def _halved(totals: Sequence[int], more_in_front: bool) -> list[int]:
    """Pads (begin..., end...) of given sums."""
    small, large = [t // 2 for t in totals], [t - t // 2 for t in totals]
    return large + small if more_in_front else small + large


@dataclass(frozen=True)
class _Geometry:
    """Strides, dilations and the elements a kernel spans, one entry a spatial axis."""

    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    extent: tuple[int, ...]

    @staticmethod
    def of(node: ir.Node, kernel: Sequence[ir.Dim]) -> _Geometry:
        """``kernel``: the sizes if the node lacks them. Refuse where they are not known."""
        kernel = node.attr("kernel_shape") or kernel
        known = [size for size in kernel if isinstance(size, int)]
        if len(known) < len(kernel):
            raise Refuse(f"the kernel's size is not known: {list(kernel)}")
        ones = (1,) * len(known)
        strides = tuple(node.attr("strides") or ones)
        dilations = tuple(node.attr("dilations") or ones)
        extent = tuple(d * (k - 1) + 1 for d, k in zip(dilations, known, strict=True))
        return _Geometry(strides, dilations, extent)


@gradient("ConvTranspose")
def conv_transpose(g: Gradients, node: ir.Node, dy: str) -> Sequence[str | None]:
    """y is what a convolution with the same kernel reads: dX = Conv(dY, W), and dW is that of this
    convolution, whose input is dY and whose output's gradient is X.
    """
    x, w = node.inputs[:2]
    axes = range(2, g.rank(x))
    db = g.sum(dy, (0, *axes), keepdims=False) if g.wants(2) else None
    geometry = _Geometry.of(node, g.dims(w)[2:])
    same: dict[str, Any] = {
        "strides": geometry.strides,
        "dilations": geometry.dilations,
        "group": node.attr("group", 1),
        "pads": _transposed_pads(g, node, geometry),
    }
    dx = g.op("Conv", dy, w, **same) if g.wants(0) else None
    dw = None
    if g.wants(1):
        dw = g.training_op("ConvGrad", x, dy, w, makes=(False, True, False), **same)[1]
    return dx, dw, db


def _transposed_pads(g: Gradients, node: ir.Node, geometry: _Geometry) -> list[int]:
    """The pads of a transposed convolution, however it says its output's size."""
    count = len(geometry.strides)
    extra = node.attr("output_padding") or (0,) * count
    auto_pad, wanted = node.attr("auto_pad") or "NOTSET", node.attr("output_shape")
    if wanted is None and auto_pad not in _SAME:
        given = None if auto_pad == "VALID" else node.attr("pads")
        return list(given or (0,) * (2 * count))
    sizes: Sequence[ir.Dim] = g.dims(node.inputs[0])[2:]
    if wanted is None:  # y is to be x times the stride; the size of x cancels out
        sizes, wanted = [1] * count, geometry.strides
    known = [size for size in sizes if isinstance(size, int)]
    if len(known) < count:
        raise Refuse(f"output_shape with an input of sizes {list(sizes)}: declare them")
    rows = zip(known, geometry.strides, geometry.extent, extra, wanted[-count:], strict=True)
    totals = [max(stride * (n - 1) + span + e - t, 0) for n, stride, span, e, t in rows]
    return _halved(totals, auto_pad != "SAME_UPPER")
