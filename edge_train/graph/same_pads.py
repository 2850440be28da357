"""The pads that onnxruntime gives a convolution with ``auto_pad`` SAME_UPPER or SAME_LOWER.

As many windows as ceil(size / stride), centred. Where a stride jumps over more than the kernel
leaves, the last window ends before the input does: pads in all are below zero, and onnxruntime lets
the first window begin inside the input. From 1.20 to 1.32 it does so by the rule here, on every
path of its convolution (1.19 centred a little otherwise). TensorFlow begins at 0 there, and ONNX
does not say. Pools are centred otherwise again.
"""

from __future__ import annotations

#: strides that jump over fewer elements than this leave every window where 0 pads have it
LEAST_JUMP = 3


def same_pads(size: int, stride: int, extent: int, lower: bool) -> tuple[int, int]:
    """Elements padded before and behind an axis of ``size``; the odd one before if ``lower``.

    ``extent`` is what one window spans. The first is below 0 where so many elements come before
    the first window; the second never is.
    """
    total = (-(-size // stride) - 1) * stride + extent - size
    if total < 0:
        return -(max(-total - 1 - lower, 0) // 2), 0
    before = (total + lower) // 2
    return before, total - before


def may_begin_inside(stride: int, extent: int) -> bool:
    """Whether some size of the axis lets the first window begin behind its first element."""
    return stride - extent >= LEAST_JUMP
