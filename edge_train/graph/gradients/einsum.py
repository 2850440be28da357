"""Einsum: the gradient of an operand is an Einsum of dy and the other operands.

Letters that only this operand has were summed: dy spreads over them. A size of 1 beside a larger
one of the same letter was broadcast: dy is summed along it. A letter twice in one operand ("ii")
reads its diagonal: the gradient lies on the diagonal.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edge_train import dtypes
from edge_train.graph import ir
from edge_train.graph.broadcast import repeated_axes
from edge_train.graph.equations import explicit_terms
from edge_train.graph.formula import Refuse
from edge_train.graph.gradients.builder import Gradients
from edge_train.graph.gradients.registry import gradient


@gradient("Einsum")
def einsum(g: Gradients, node: ir.Node, dy: str) -> Sequence[str | None]:
    ranks = [g.rank(name) for name in node.inputs]
    try:
        terms, result = explicit_terms(node.attr("equation"), ranks)
    except ValueError as error:
        raise Refuse(str(error)) from None
    return [
        _operand_gradient(g, dy, result, node.inputs, terms, index) if g.wants(index) else None
        for index in range(len(terms))
    ]


def _operand_gradient(
    g: Gradients, dy: str, result: str, operands: Sequence[str], terms: Sequence[str], index: int
) -> str:
    target, own = operands[index], terms[index]
    others = [at for at in range(len(terms)) if at != index]
    reached = set(result).union(*(terms[at] for at in others))
    letters = [letter for letter in dict.fromkeys(own) if letter in reached]
    equation = ",".join([result, *(terms[at] for at in others)]) + "->" + "".join(letters)
    dx = g.op("Einsum", dy, *(operands[at] for at in others), equation=equation)
    return _spread(g, dx, letters, own, target, result)


def _spread(
    g: Gradients, dx: str, letters: Sequence[str], own: str, target: str, result: str
) -> str:
    """``dx`` of axes ``letters`` over the axes ``own``, on the diagonal of repeated letters."""
    first = {letter: own.index(letter) for letter in own}
    held = sorted(first[letter] for letter in letters)
    missing = [axis for axis in range(len(own)) if axis not in held]
    if missing:
        dx = g.op("Unsqueeze", dx, g.ints(*missing))
    dx = _shrunk(g, dx, target, held)
    # dy has every size of the result, the other operands may have 1 in place of this one's
    summed = [axis for axis in held if own[axis] not in result]
    if missing or not _have_same_sizes(g.dims(dx), g.dims(target), summed):
        dx = g.op("Expand", dx, g.shape(target))
    for axis, letter in enumerate(own):
        if first[letter] != axis:
            pair = (_positions(g, target, at, len(own)) for at in (first[letter], axis))
            dx = g.masked(g.equal(*pair), dx)
    return dx


def _have_same_sizes(a: Sequence[ir.Dim], b: Sequence[ir.Dim], axes: Sequence[int]) -> bool:
    return all(a[axis] is not None and a[axis] == b[axis] for axis in axes)


def _shrunk(g: Gradients, dx: str, target: str, axes: Sequence[int]) -> str:
    """``dx`` summed along those of the axes that have size 1 in ``target``: it was broadcast."""
    full, part = g.dims(dx), g.dims(target)
    open_axes = [axis for axis in axes if not isinstance(part[axis], int)]
    if _have_same_sizes(part, full, open_axes):
        return g.sum(dx, [axis for axis in axes if part[axis] == 1 != full[axis]])
    repeated = g.op("Reshape", repeated_axes(g, g.shape(target), g.shape(dx)), g.ints(-1))
    return g.op("ReduceSum", dx, repeated, keepdims=1, noop_with_empty_axes=1)


def _positions(g: Gradients, target: str, axis: int, rank: int) -> str:
    """0, 1, 2 … along one axis, sizes of 1 elsewhere."""
    size = g.op("Squeeze", g.shape_slice(target, axis, axis + 1), g.ints(0))
    zero, one = (g.const(np.array(value, np.int64)) for value in (0, 1))
    steps = g.op("Range", zero, size, one, elem_type=dtypes.INT64)
    return g.reshape(steps, *(-1 if at == axis else 1 for at in range(rank)))
