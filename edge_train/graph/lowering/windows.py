"""Windows: the geometry that convolution and pooling share, and how a gradient is laid back on it.

Along one axis a window of ``kernel`` taps, ``dilations`` apart, starts every ``strides`` elements
of the padded input. ``slack`` is what the last window leaves over at the end of the padded input.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from edge_train.graph import ir
from edge_train.graph.lowering.builder import TO_END, Builder, Refuse
from edge_train.graph.same_pads import may_begin_inside, same_pads

Sizes = tuple[int, ...]


@dataclass(frozen=True)
class Window:
    """Attributes of a convolution or pooling node, one entry per spatial axis.

    ``pads`` is (begin..., end...); None where it depends on sizes known at run time only, and then
    ``run_time_pads`` names an int64 tensor with the same layout. A pad below 0 is so many elements
    that no window reaches. ``kernel`` and ``slack`` entries may be unknown too.
    """

    strides: Sizes
    dilations: Sizes
    kernel: Sizes | None
    pads: Sizes | None
    run_time_pads: str
    slack: tuple[int | None, ...]

    @property
    def rank(self) -> int:
        """The number of spatial axes."""
        return len(self.strides)

    @property
    def axes(self) -> Sizes:
        """The spatial axes of an (N, C, spatial...) tensor."""
        return tuple(range(2, 2 + self.rank))

    @property
    def extent(self) -> Sizes:
        """How many input elements one window spans; Refuse where the kernel's size is unknown."""
        if self.kernel is None:
            raise Refuse("the kernel's size is not known; add kernel_shape or the weight's shape")
        return tuple(d * (k - 1) + 1 for d, k in zip(self.dilations, self.kernel, strict=True))

    @property
    def is_plain(self) -> bool:
        """Whether every window is one element and covers the input: a 1x1 convolution."""
        return (
            self.kernel is not None
            and self.pads is not None
            and set(self.kernel) == {1} == set(self.strides)
            and not any(self.pads)
        )


def window_of(b: Builder, node: ir.Node, x: str, kernel: Sizes | None) -> Window:
    """The window of a node whose forward input is ``x`` (N, C, spatial...)."""
    rank = b.rank(x) - 2
    strides = tuple(node.attr("strides") or (1,) * rank)
    dilations = tuple(node.attr("dilations") or (1,) * rank)
    if rank < 1 or len(strides) != rank or len(dilations) != rank:
        raise Refuse(f"'{x}' has {rank} spatial axes; strides {strides}, dilations {dilations}")
    sizes = b.dims(x)[2:]
    auto_pad = node.attr("auto_pad") or "NOTSET"
    bare = Window(strides, dilations, kernel, None, "", (None,) * rank)
    pads: Sizes | None = (0,) * (2 * rank)
    run_time_pads = ""
    if auto_pad == "NOTSET":
        pads = tuple(node.attr("pads") or (0,) * (2 * rank))
    elif auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        pads = _same_pads(bare, sizes, auto_pad == "SAME_LOWER")
        if pads is None:
            run_time_pads = _same_pads_at_run_time(b, bare, x, auto_pad == "SAME_LOWER")
    elif auto_pad != "VALID":
        raise Refuse(f"auto_pad is '{auto_pad}'; expected NOTSET, VALID, SAME_UPPER or SAME_LOWER")
    # the last window of ceil_mode hangs over the end, so that nothing exact is known there
    slack = _slack(bare, sizes, None if node.attr("ceil_mode", 0) else pads)
    return Window(strides, dilations, kernel, pads, run_time_pads, slack)


def _same_pads(window: Window, sizes: Sequence[ir.Dim], lower: bool) -> Sizes | None:
    """Pads that give ceil(size / stride) windows; the odd one goes to the end unless ``lower``."""
    pairs: list[tuple[int, int]] = []
    for size, stride, extent in zip(sizes, window.strides, window.extent, strict=True):
        if not isinstance(size, int):
            if stride > 1:
                return None
            size = extent  # the sum is that of every size
        pairs.append(same_pads(size, stride, extent, lower))
    before, behind = zip(*pairs, strict=True)
    return (*before, *behind)


def _same_pads_at_run_time(b: Builder, window: Window, x: str, lower: bool) -> str:
    """`same_pads` as nodes."""
    size, stride = b.shape_slice(x, 2, 2 + window.rank), b.ints(*window.strides)
    # ceil(size / stride) - 1 == (size - 1) // stride
    covered = b.mul(b.div(b.sub(size, b.ints(1)), stride), stride)
    need = b.sub(b.add(covered, b.ints(*window.extent)), size)
    total = b.op("Max", need, b.ints(0))
    small = b.div(total, b.ints(2))
    large = b.sub(total, small)
    before, behind = (large, small) if lower else (small, large)
    if _may_begin_inside(window):
        beyond = b.op("Max", b.sub(b.ints(-2 if lower else -1), need), b.ints(0))
        before = b.sub(before, b.div(beyond, b.ints(2)))
    return b.concat_ints(before, behind)


def _may_begin_inside(window: Window) -> bool:
    pairs = zip(window.strides, window.extent, strict=True)
    return any(may_begin_inside(stride, extent) for stride, extent in pairs)


def _slack(window: Window, sizes: Sequence[ir.Dim], pads: Sizes | None) -> tuple[int | None, ...]:
    slack: list[int | None] = []
    for axis, (size, stride) in enumerate(zip(sizes, window.strides, strict=True)):
        if stride == 1:
            slack.append(0)
        elif isinstance(size, int) and pads is not None and window.kernel is not None:
            total = pads[axis] + pads[axis + window.rank]
            slack.append((size + total - window.extent[axis]) % stride)
        else:
            slack.append(None)
    return tuple(slack)


def padded(b: Builder, x: str, window: Window, lead: int = 2, extra: int = 0) -> str:
    """``x`` with zeros around its spatial axes, which follow ``lead`` others; cut by pads below 0.

    ``extra`` more zeros end the last axis. ``x`` itself where nothing is padded.
    """
    axes = b.ints(*range(lead, lead + window.rank))
    if window.pads is None:
        return b.op("Pad", x, window.run_time_pads, "", axes)
    *pads, end = window.pads
    if not any(pads) and end + extra == 0:
        return x
    return b.op("Pad", x, b.ints(*pads, end + extra), "", axes)


def tap(b: Builder, x: str, window: Window, at: Sequence[tuple[int, int]], lead: int = 2) -> str:
    """What a tap of every window sees of the padded ``x``: pairs (spatial axis, index of the tap).

    The end counts from the back, so that no size is needed: ``slack`` < stride never adds a window.
    """
    starts, ends, axes, steps = [], [], [], []
    for axis, index in at:
        start = index * window.dilations[axis]
        behind = window.extent[axis] - 1 - start
        if start or behind or window.strides[axis] > 1:
            starts.append(start)
            ends.append(-behind if behind else TO_END)
            axes.append(axis + lead)
            steps.append(window.strides[axis])
    if not axes:
        return x
    return b.op("Slice", x, b.ints(*starts), b.ints(*ends), b.ints(*axes), b.ints(*steps))


def last_axis_taps(
    b: Builder, x: str, window: Window, sizes: Sequence[ir.Dim], front: Sequence[str | int]
) -> list[str]:
    """What each tap along the last axis sees of ``x`` (front..., sizes...), which is padded here.

    With a stride the last axis is taken apart by phase first: a Slice with a step copies element
    by element (8x96x50x50, step 2: 1.5 ms a tap; Split 0.6 for all, then 0.2 a tap). Not by
    Transpose, which onnxruntime would move behind the Slices and repeat.
    """
    last, lead = window.rank - 1, len(front)
    stride, taps = window.strides[last], (window.kernel or ())[last]
    known = [size for size in sizes if isinstance(size, int)]
    if stride == 1 or taps == 1 or window.pads is None or len(known) < len(sizes):
        seen = padded(b, x, window, lead)
        return [tap(b, seen, window, [(last, index)], lead) for index in range(taps)]
    full = [n + window.pads[i] + window.pads[i + window.rank] for i, n in enumerate(known)]
    windows = (full[last] - window.extent[last]) // stride + 1
    extra = -full[last] % stride
    long = (full[last] + extra) // stride
    apart = b.reshape(padded(b, x, window, lead, extra), *front, *full[:last], long, stride)
    phases = b.ops("Split", apart, n=stride, axis=lead + window.rank, num_outputs=stride)
    axis, found = b.ints(lead + last), []
    for index in range(taps):
        begin, phase = divmod(index * window.dilations[last], stride)
        part = b.op("Squeeze", phases[phase], b.ints(lead + window.rank))
        found.append(b.op("Slice", part, b.ints(begin), b.ints(begin + windows), axis))
    return found


def spread(b: Builder, dy: str, w: str, window: Window, like: str, group: int) -> str:
    """The transposed convolution of ``dy`` with ``w``, with the spatial sizes of ``like``.

    Inputs before the first and behind the last window were never read: they get zeros.
    """
    same: dict[str, Any] = {
        "strides": window.strides,
        "dilations": window.dilations,
        "group": group,
    }
    given = window.pads or (0,) * (2 * window.rank)
    unread = [max(-pad, 0) for pad in given]
    pairs = zip(window.strides, window.slack, strict=True)
    extra = [s - 1 if rest is None else rest for s, rest in pairs]
    same["pads"] = [max(pad, 0) for pad in given]
    grown = b.op("ConvTranspose", dy, w, output_padding=extra, **same)
    if any(unread):
        grown = b.op("Pad", grown, b.ints(*unread), "", b.ints(*window.axes))
    if window.pads is not None and None not in window.slack:
        return grown
    size = b.shape_slice(like, 2, 2 + window.rank)
    if window.pads is not None:
        return b.op("Slice", grown, b.ints(*(0,) * window.rank), size, b.ints(*window.axes))
    first = b.op("Slice", window.run_time_pads, b.ints(0), b.ints(window.rank), b.ints(0))
    if not _may_begin_inside(window):
        return b.op("Slice", grown, first, b.add(first, size), b.ints(*window.axes))
    end = b.sub(b.add(first, size), b.shape_slice(grown, 2, 2 + window.rank))
    around = b.concat_ints(b.sub(b.ints(0), first), end)
    return b.op("Pad", grown, around, "", b.ints(*window.axes))
