"""Einsum: the gradient of an operand is an Einsum of dy and the other operands.

Letters that only this operand has were summed: dy spreads over them. A letter twice in one operand
("ii") reads its diagonal: the gradient lies on the diagonal.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edge_train import dtypes
from edge_train.graph import ir
from edge_train.graph.broadcast import unbroadcast
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
    if len(letters) == len(own):  # sizes of 1 may have been broadcast
        return unbroadcast(g, dx, dx, target)
    return _spread(g, dx, letters, own, target)


def _spread(g: Gradients, dx: str, letters: Sequence[str], own: str, target: str) -> str:
    """``dx`` of axes ``letters`` over the axes ``own``, on the diagonal of repeated letters."""
    first = {letter: own.index(letter) for letter in own}
    held = {first[letter] for letter in letters}
    missing = [axis for axis in range(len(own)) if axis not in held]
    dx = g.op("Expand", g.op("Unsqueeze", dx, g.ints(*missing)), g.shape(target))
    for axis, letter in enumerate(own):
        if first[letter] != axis:
            pair = (_positions(g, target, at, len(own)) for at in (first[letter], axis))
            dx = g.masked(g.equal(*pair), dx)
    return dx


def _positions(g: Gradients, target: str, axis: int, rank: int) -> str:
    """0, 1, 2 … along one axis, sizes of 1 elsewhere."""
    size = g.op("Squeeze", g.shape_slice(target, axis, axis + 1), g.ints(0))
    zero, one = (g.const(np.array(value, np.int64)) for value in (0, 1))
    steps = g.op("Range", zero, size, one, elem_type=dtypes.INT64)
    return g.reshape(steps, *(-1 if at == axis else 1 for at in range(rank)))
