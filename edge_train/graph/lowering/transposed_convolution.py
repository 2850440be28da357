"""ConvTransposeGrad: a transposed convolution is the gradient of a convolution, so this is one.

dX convolves dY with the weight; dW is the weight gradient of that convolution, where dY is its
input and X the gradient of its output. What is left is to find the pads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edge_train.graph import ir
from edge_train.graph.lowering.builder import TO_END, Builder, Refuse
from edge_train.graph.lowering.convolution import kernel_of, weight_gradient
from edge_train.graph.lowering.registry import lowers
from edge_train.graph.lowering.windows import Sizes, Window


@dataclass(frozen=True)
class _Form:
    """The attributes of a transposed convolution, one entry a spatial axis."""

    strides: Sizes
    extra: Sizes  # output_padding
    lower: bool  # an odd pad goes to the front

    def natural(self, sizes: Sequence[int], extent: Sizes) -> list[int]:
        """The output's sizes before anything is cut off, without output_padding."""
        triples = zip(sizes, self.strides, extent, strict=True)
        return [(size - 1) * stride + span for size, stride, span in triples]

    def front(self, total: int) -> int:
        """How much of a total pad is in front."""
        return total - total // 2 if self.lower else total // 2


@lowers("ConvTransposeGrad", float_only=True)
def conv_transpose_grad(b: Builder, node: ir.Node) -> tuple[str, ...]:
    """dX, dW, dB of a transposed convolution of one to three spatial axes."""
    dy, x, w = node.inputs
    group = node.attr("group", 1)
    window, seen = _convolved(b, node, dy, x, kernel_of(b, node, w))
    dx = dw = ""
    if node.output(0):
        dx = b.op(
            "Conv",
            seen,
            w,
            group=group,
            strides=window.strides,
            dilations=window.dilations,
            pads=window.pads,
        )
    if node.output(1):
        dw = weight_gradient(b, x, seen, w, window, group)
    return dx, dw, b.sum(dy, (0, *window.axes), keepdims=False) if node.output(2) else ""


def _convolved(
    b: Builder, node: ir.Node, dy: str, x: str, kernel: Sizes | None
) -> tuple[Window, str]:
    """The convolution that undoes the forward node, and what it reads: dY cut or padded."""
    rank = b.rank(x) - 2
    strides = tuple(node.attr("strides") or (1,) * rank)
    dilations = tuple(node.attr("dilations") or (1,) * rank)
    extra = tuple(node.attr("output_padding") or (0,) * rank)
    if rank < 1 or not len(strides) == len(dilations) == len(extra) == rank:
        raise Refuse(f"'{x}' has {rank} spatial axes; strides {strides}, dilations {dilations}")
    none = (0,) * (2 * rank)
    bare = Window(strides, dilations, kernel, none, "", (0,) * rank)
    form = _Form(strides, extra, node.attr("auto_pad") != "SAME_UPPER")
    pads = _pads(b, node, x, bare, form)
    if pads is None:
        place = _run_time_pads(b, node, dy, x, bare, form)
        return bare, b.op("Pad", dy, place, "", b.ints(*bare.axes))
    cut = [min(pad, 0) for pad in pads[rank:]]
    if any(cut):  # the end of dY that output_padding added has no gradient to give
        ends = [size or TO_END for size in cut]
        dy = b.op("Slice", dy, b.ints(*(0,) * rank), b.ints(*ends), b.ints(*bare.axes))
    kept = (*pads[:rank], *(max(pad, 0) for pad in pads[rank:]))
    return Window(strides, dilations, kernel, kept, "", (0,) * rank), dy


def _pads(b: Builder, node: ir.Node, x: str, bare: Window, form: _Form) -> Sizes | None:
    """Pads (begin..., end...) that leave no rest; a negative end cuts. None: the run tells."""
    rank, given = bare.rank, node.attr("output_shape")
    auto_pad = node.attr("auto_pad") or "NOTSET"
    if given:
        sizes = [size for size in b.dims(x)[2:] if isinstance(size, int)]
        if len(sizes) < rank:
            return None
        outputs, natural = given[-rank:], form.natural(sizes, bare.extent)
        totals = [
            max(whole + more - size, 0)
            for whole, more, size in zip(natural, form.extra, outputs, strict=True)
        ]
        begins = [form.front(total) for total in totals]
        triples = zip(natural, outputs, begins, strict=True)
        return (*begins, *(whole - size - begin for whole, size, begin in triples))
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        triples = zip(bare.extent, form.strides, form.extra, strict=True)
        totals = [max(span - stride + more, 0) for span, stride, more in triples]
        begins = [form.front(total) for total in totals]
        ends = [total - begin for total, begin in zip(totals, begins, strict=True)]
    elif auto_pad in ("NOTSET", "VALID"):
        pads = node.attr("pads") if auto_pad == "NOTSET" else None
        begins, ends = list((pads or (0,) * rank)[:rank]), list((pads or (0,) * rank)[-rank:])
    else:
        raise Refuse(f"auto_pad is '{auto_pad}'; expected NOTSET, VALID, SAME_UPPER or SAME_LOWER")
    return (*begins, *(end - more for end, more in zip(ends, form.extra, strict=True)))


def _run_time_pads(b: Builder, node: ir.Node, dy: str, x: str, bare: Window, form: _Form) -> str:
    """The pads for a given output_shape where the input's sizes are symbols."""
    sizes, stride = b.shape_slice(x, 2, 2 + bare.rank), b.ints(*form.strides)
    wanted = b.shape_slice(dy, 2, 2 + bare.rank)
    natural = b.add(b.mul(b.sub(sizes, b.ints(1)), stride), b.ints(*bare.extent))
    total = b.op("Max", b.sub(b.add(natural, b.ints(*form.extra)), wanted), b.ints(0))
    half = b.div(total, b.ints(2))
    begin = b.sub(total, half) if form.lower else half
    return b.concat_ints(begin, b.sub(b.sub(natural, wanted), begin))
