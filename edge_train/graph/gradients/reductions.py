"""Reductions: dy gets the reduced axes back as axes of size 1, then spreads over x.

With noop_with_empty_axes and no axes every element is a sum of its own; the formulas hold.
"""

from __future__ import annotations

from edge_train import dtypes
from edge_train.graph import ir
from edge_train.graph.gradients.builder import Gradients
from edge_train.graph.gradients.registry import gradient


class _Reduction:
    """What a Reduce node does: its axes (None where only the run can tell) and dy, y with them."""

    def __init__(self, g: Gradients, node: ir.Node, dy: str) -> None:
        self._g, self._node = g, node
        self.x, self.axes_name = node.inputs[0], node.input(1)
        axes = g.shapes.contents(self.axes_name) if self.axes_name else ()
        known = axes is not None and all(isinstance(axis, int) for axis in axes)
        self.axes = tuple(int(axis or 0) for axis in axes or ()) if known else None
        self.dy = self.kept(dy)

    def kept(self, reduced: str) -> str:
        """An output of the node as if keepdims were 1, or one number where all is reduced."""
        g = self._g
        if self._node.attr("keepdims", 1) or self.axes == ():
            return reduced
        if self.axes is not None:
            return g.op("Unsqueeze", reduced, g.ints(*self.axes))
        return g.reshape_like(reduced, self.sum(self.x))

    def sum(self, x: str) -> str:
        """The sum over the node's axes, which stay as 1."""
        return self._over("ReduceSum", x)

    def prod(self, x: str) -> str:
        """The product over the node's axes, which stay as 1."""
        return self._over("ReduceProd", x)

    def _over(self, op_type: str, x: str) -> str:
        axes = [self.axes_name] if self.axes != () else []
        noop = self._node.attr("noop_with_empty_axes", 0)
        if noop and not axes:
            return x
        return self._g.op(op_type, x, *axes, keepdims=1, noop_with_empty_axes=noop)

    def spread(self, small: str) -> str:
        """``small`` repeated along the reduced axes."""
        return self._g.op("Expand", small, self._g.shape(self.x))


@gradient("ReduceSum", cut=(1,))
def reduce_sum(g: Gradients, node: ir.Node, dy: str) -> str:
    r = _Reduction(g, node, dy)
    return r.spread(r.dy)


@gradient("ReduceMean", cut=(1,))
def reduce_mean(g: Gradients, node: ir.Node, dy: str) -> str:
    r = _Reduction(g, node, dy)
    count = g.div(_size(g, r.x, dy), _size(g, dy, dy))
    return r.spread(g.op("Scale", r.dy, count, domain=ir.MICROSOFT, scale_down=1))


def _size(g: Gradients, x: str, like: str) -> str:
    """The number of elements as a float: an int64 division by zero would end the process."""
    return g.cast_like(g.op("Size", x, elem_type=dtypes.INT64), like)


@gradient("ReduceMax", "ReduceMin", cut=(1,))
def reduce_extreme(g: Gradients, node: ir.Node, dy: str) -> str:
    """Those that tie for the extreme share dy equally."""
    r = _Reduction(g, node, dy)
    mask = g.cast_like(g.equal(r.x, r.kept(node.outputs[0])), dy)
    return g.mul(mask, g.div(r.dy, r.sum(mask)))


@gradient("ReduceProd", cut=(1,))
def reduce_prod(g: Gradients, node: ir.Node, dy: str) -> str:
    """dy times the product of the others: p/x without a zero; at one zero, p, the product of the
    rest, for it alone; nothing where there are more."""
    r = _Reduction(g, node, dy)
    zero = g.equal(r.x, 0.0)
    flags = g.cast_like(zero, dy)
    count, filled = r.sum(flags), g.add(r.x, flags)
    alone, none = (g.cast_like(g.equal(count, number), dy) for number in (1.0, 0.0))
    share = g.div(g.where(zero, alone, none), filled)
    return g.mul(g.mul(r.dy, r.prod(filled)), share)


@gradient("ReduceL1", cut=(1,))
def reduce_l1(g: Gradients, node: ir.Node, dy: str) -> str:
    r = _Reduction(g, node, dy)
    return g.mul(r.dy, g.op("Sign", r.x))


@gradient("ReduceL2", cut=(1,))
def reduce_l2(g: Gradients, node: ir.Node, dy: str) -> str:
    """x dy / y, and 0 where the norm is 0."""
    r = _Reduction(g, node, dy)
    y = r.kept(node.outputs[0])
    return g.mul(r.x, g.where(g.equal(y, 0.0), 0.0, g.div(r.dy, y)))


@gradient("ReduceLogSum", cut=(1,))
def reduce_log_sum(g: Gradients, node: ir.Node, dy: str) -> str:
    """dy / sum(x), the sum being exp(y)."""
    r = _Reduction(g, node, dy)
    return r.spread(g.div(r.dy, g.exp(r.kept(node.outputs[0]))))


@gradient("ReduceLogSumExp", cut=(1,))
def reduce_log_sum_exp(g: Gradients, node: ir.Node, dy: str) -> str:
    r = _Reduction(g, node, dy)
    return g.mul(r.dy, g.exp(g.sub(r.x, r.kept(node.outputs[0]))))


@gradient("ReduceSumSquare", cut=(1,))
def reduce_sum_square(g: Gradients, node: ir.Node, dy: str) -> str:
    r = _Reduction(g, node, dy)
    return g.mul(g.mul(r.x, 2.0), r.dy)


@gradient("CumSum", cut=(1,))
def cum_sum(g: Gradients, node: ir.Node, dy: str) -> str:
    """The running sum from the other end."""
    exclusive, reverse = node.attr("exclusive", 0), node.attr("reverse", 0)
    return g.op("CumSum", dy, node.inputs[1], exclusive=exclusive, reverse=1 - reverse)
