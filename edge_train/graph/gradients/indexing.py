"""Ops that pick or place elements by index."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from edge_train import dtypes
from edge_train.graph import ir
from edge_train.graph.gradients.builder import Gradients
from edge_train.graph.gradients.registry import gradient, no_gradient

no_gradient("ArgMax", "ArgMin", "NonMaxSuppression", "NonZero", "OneHot")


@gradient("Gather", cut=(1,))
@gradient("ShrunkenGather", domain=ir.MICROSOFT, cut=(1,))
def gather(g: Gradients, node: ir.Node, dy: str) -> str:
    return _gather_grad(g, node.inputs[0], node.inputs[1], dy, node.attr("axis", 0))


def _gather_grad(g: Gradients, x: str, index: str, dy: str, axis: int) -> str:
    kind = g.elem_type(x)
    inputs = (g.shape(x), index, dy)
    return g.op("GatherGrad", *inputs, elem_type=kind, domain=ir.MICROSOFT, axis=axis)


@gradient("Compress", cut=(1,))
def compress(g: Gradients, node: ir.Node, dy: str) -> str:
    """A Gather of the places where the condition holds."""
    x, condition = node.inputs
    axis = node.attr("axis")
    places = g.op("NonZero", condition, elem_type=dtypes.INT64)
    index = g.op("Squeeze", places, g.ints(0))
    if axis is not None:
        return _gather_grad(g, x, index, dy, axis)
    flat = g.op("Reshape", x, g.ints(-1))
    return g.reshape_like(_gather_grad(g, flat, index, dy, 0), x)


@gradient("GatherElements", cut=(1,))
def gather_elements(g: Gradients, node: ir.Node, dy: str) -> str:
    return _scattered(g, node.inputs[0], node.inputs[1], dy, node.attr("axis", 0))


@gradient("TopK", cut=(1,))
def top_k(g: Gradients, node: ir.Node, dy: str, d_indices: str = "") -> str:
    index = g.extra_output(node, 1, "indices", dtypes.INT64)
    return _scattered(g, node.inputs[0], index, dy, node.attr("axis", -1))


def _scattered(g: Gradients, x: str, index: str, dy: str, axis: int) -> str:
    return g.op("GatherElementsGrad", dy, g.shape(x), index, domain=ir.MICROSOFT, axis=axis)


@gradient("GatherND", cut=(1,))
def gather_nd(g: Gradients, node: ir.Node, dy: str) -> str:
    x, index = node.inputs
    batch, kind = node.attr("batch_dims", 0), g.elem_type(x)
    inputs = (g.shape(x), index, dy)
    return g.op("GatherNDGrad", *inputs, elem_type=kind, domain=ir.MICROSOFT, batch_dims=batch)


class _Place:
    """Scatter and gather with one index: along an axis, or by coordinates."""

    def __init__(self, g: Gradients, node: ir.Node) -> None:
        self._g, self._index = g, node.inputs[1]
        self._ops = ("GatherND", "ScatterND")
        self._attributes: dict[str, Any] = {}
        if node.op_type == "ScatterElements":
            self._ops = ("GatherElements", "ScatterElements")
            self._attributes["axis"] = node.attr("axis", 0)

    def gather(self, x: str) -> str:
        return self._g.op(self._ops[0], x, self._index, **self._attributes)

    def scatter(self, x: str, updates: str, reduction: str | None = None) -> str:
        inputs = (x, self._index, updates)
        return self._g.op(self._ops[1], *inputs, reduction=reduction, **self._attributes)


@gradient("ScatterElements", "ScatterND", cut=(1,))
def scatter(g: Gradients, node: ir.Node, dy: str) -> Sequence[str | None]:
    rule = _REDUCTIONS[node.attr("reduction", "none")]
    d_data, d_updates = rule(g, node, dy, _Place(g, node))
    return d_data, None, d_updates


def _overwrite(g: Gradients, node: ir.Node, dy: str, at: _Place) -> tuple[str | None, str | None]:
    updates = node.inputs[2]
    d_data = at.scatter(dy, g.zeros(g.shape(updates), updates)) if g.wants(0) else None
    return d_data, at.gather(dy) if g.wants(2) else None


def _add(g: Gradients, node: ir.Node, dy: str, at: _Place) -> tuple[str, str | None]:
    return dy, at.gather(dy) if g.wants(2) else None


def _mul(g: Gradients, node: ir.Node, dy: str, at: _Place) -> tuple[str | None, str | None]:
    """dy times the product of the other factors, zeros counted apart so that none is divided by."""
    data, _, updates = node.inputs
    d_data = d_updates = None
    if g.wants(0):
        d_data = g.mul(dy, at.scatter(_ones(g, data), updates, "mul"))
    if g.wants(2):
        is_zero = g.equal(updates, 0.0)
        zero, factor = g.cast_like(is_zero, updates), g.where(is_zero, 1.0, updates)
        zeros = at.gather(at.scatter(g.zeros(g.shape(data), data), zero, "add"))
        product = g.div(at.gather(at.scatter(data, factor, "mul")), factor)
        others = g.where(g.equal(g.sub(zeros, zero), 0.0), product, 0.0)
        d_updates = g.mul(at.gather(dy), others)
    return d_data, d_updates


def _ones(g: Gradients, like: str) -> str:
    return g.add(g.zeros(g.shape(like), like), 1.0)


def _extreme(g: Gradients, node: ir.Node, dy: str, at: _Place) -> tuple[str | None, str | None]:
    """Everything that equals the result has an equal share."""
    data, _, updates = node.inputs
    y = node.outputs[0]
    kept = g.cast_like(g.equal(data, y), dy)
    placed = g.cast_like(g.equal(updates, at.gather(y)), dy)
    share = g.div(dy, at.scatter(kept, placed, "add"))
    d_data = g.mul(share, kept) if g.wants(0) else None
    return d_data, g.mul(at.gather(share), placed) if g.wants(2) else None


_Reduction = Callable[[Gradients, ir.Node, str, _Place], "tuple[str | None, str | None]"]
_REDUCTIONS: dict[str, _Reduction] = {
    "none": _overwrite,
    "add": _add,
    "mul": _mul,
    "max": _extreme,
    "min": _extreme,
}
