"""Shape rules of the ops that take axes away: sums, extremes, counts, tests of whole tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edge_train import dtypes
from edge_train.graph import ir
from edge_train.graph.shape_rules import Facts, axes_of, axis_of, like, rule

if TYPE_CHECKING:
    from edge_train.graph.shapes import Shapes


_REDUCTIONS = """
ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum
ReduceSumSquare ReduceSumTraining
"""


@rule(*_REDUCTIONS.split())
def _reduce(s: Shapes, node: ir.Node) -> Facts:
    elem_type, dims = like(s, node.input(0))
    axes, keep = axes_of(s, node), node.attr("keepdims", 1)
    if dims is None:
        return [(elem_type, None)]
    if axes is None and node.input(1):  # known at run time only
        return [(elem_type, (None,) * len(dims) if keep else None)]
    if not axes and node.attr("noop_with_empty_axes", 0):
        return [(elem_type, dims)]
    gone = {axis_of(axis, len(dims)) for axis in axes or range(len(dims))}
    reduced = [1 if i in gone else dim for i, dim in enumerate(dims)]
    kept = [dim for i, dim in enumerate(dims) if i not in gone]
    return [(elem_type, tuple(reduced if keep else kept))]


@rule("ArgMax", "ArgMin")
def _arg(s: Shapes, node: ir.Node) -> Facts:
    dims = s.dims(node.input(0))
    if dims is None:
        return [(dtypes.INT64, None)]
    axis = axis_of(node.attr("axis", 0), len(dims))
    middle = (1,) if node.attr("keepdims", 1) else ()
    return [(dtypes.INT64, (*dims[:axis], *middle, *dims[axis + 1 :]))]


@rule("TopK")
def _top_k(s: Shapes, node: ir.Node) -> Facts:
    elem_type, dims = like(s, node.input(0))
    if dims is not None:
        axis, count = axis_of(node.attr("axis", -1), len(dims)), s.contents(node.input(1))
        dims = (*dims[:axis], count[0] if count else None, *dims[axis + 1 :])
    return [(elem_type, dims), (dtypes.INT64, dims)]


@rule("ReduceAllL2")
def _scalar(s: Shapes, node: ir.Node) -> Facts:
    return [(s.elem_type(node.input(0)), ())]


@rule("All", "IsAllFinite")
def _flag(s: Shapes, node: ir.Node) -> Facts:
    return [(dtypes.BOOL, ())]


@rule("NonZero")
def _non_zero(s: Shapes, node: ir.Node) -> Facts:
    return [(dtypes.INT64, (s.rank(node.input(0)), None))]
