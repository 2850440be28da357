"""Linear algebra: Gemm, MatMul and its fused form."""

from __future__ import annotations

from collections.abc import Sequence

from edge_train.graph import ir
from edge_train.graph.broadcast import unbroadcast
from edge_train.graph.formula import Refuse
from edge_train.graph.gradients.builder import Gradients
from edge_train.graph.gradients.registry import gradient, refuse


@gradient("Gemm")
def gemm(g: Gradients, node: ir.Node, dy: str) -> Sequence[str | None]:
    """Y = alpha op(A) op(B) + beta C, each product as one Gemm with the flags turned."""
    a, b = node.inputs[:2]
    trans_a, trans_b = node.attr("transA", 0), node.attr("transB", 0)
    alpha = node.attr("alpha", 1.0)
    da = db = dc = None
    if g.wants(0):
        pair, flags = ((b, dy), (trans_b, 1)) if trans_a else ((dy, b), (0, 1 - trans_b))
        da = _product(g, pair, flags, alpha)
    if g.wants(1):
        pair, flags = ((dy, a), (1, trans_a)) if trans_b else ((a, dy), (1 - trans_a, 0))
        db = _product(g, pair, flags, alpha)
    if g.wants(2):
        dc = unbroadcast(g, dy, node.outputs[0], node.inputs[2])
        beta = node.attr("beta", 1.0)
        dc = g.op("Identity", dc) if beta == 1.0 else g.mul(dc, beta)
    return da, db, dc


def _product(g: Gradients, pair: tuple[str, str], transposed: tuple[int, int], alpha: float) -> str:
    trans_a, trans_b = transposed
    return g.op("Gemm", *pair, alpha=float(alpha), beta=0.0, transA=trans_a, transB=trans_b)


@gradient("MatMul")
def matmul(g: Gradients, node: ir.Node, dy: str) -> Sequence[str | None]:
    """dA = dY B^T and dB = A^T dY, summed over the batch axes that one side lacks.

    A vector on either side is a matrix with one row (left) or one column (right).
    """
    a, b = node.inputs
    row, column = g.rank(a) == 1, g.rank(b) == 1
    if row:
        a, dy = g.op("Unsqueeze", a, g.ints(0)), g.op("Unsqueeze", dy, g.ints(-1 if column else -2))
    if column:
        b, dy = g.op("Unsqueeze", b, g.ints(1)), g.op("Unsqueeze", dy, g.ints(-1))
    da = _left_gradient(g, a, b, dy) if g.wants(0) else None
    db = _right_gradient(g, a, b, dy) if g.wants(1) else None
    if row and da is not None:
        da = g.op("Squeeze", da, g.ints(0))
    if column and db is not None:
        db = g.op("Squeeze", db, g.ints(1))
    return da, db


def _left_gradient(g: Gradients, a: str, b: str, dy: str) -> str:
    if g.rank(a) == g.rank(b) == 2:
        return _product(g, (dy, b), (0, 1), 1.0)
    product = g.op("FusedMatMul", dy, b, domain=ir.MICROSOFT, transB=1)
    return unbroadcast(g, product, product, a)


def _right_gradient(g: Gradients, a: str, b: str, dy: str) -> str:
    if g.rank(b) == 2:  # the batch folds into the summed axis: one product
        k, n = g.shape_slice(b, 0, 1), g.shape_slice(b, 1, 2)
        if g.rank(a) > 2:
            a, dy = g.reshape(a, -1, k), g.reshape(dy, -1, n)
        return _product(g, (a, dy), (1, 0), 1.0)
    product = g.op("FusedMatMul", a, dy, domain=ir.MICROSOFT, transA=1)
    return unbroadcast(g, product, product, b)


@gradient("FusedMatMul", domain=ir.MICROSOFT)
def fused_matmul(g: Gradients, node: ir.Node, dy: str) -> Sequence[str | None]:
    """alpha op(A) op(B), flags turned as for Gemm; matrices and stacks of them."""
    a, b = node.inputs
    trans_a, trans_b = node.attr("transA", 0), node.attr("transB", 0)
    if min(g.rank(a), g.rank(b)) < 2:
        raise Refuse("a FusedMatMul with a vector has no gradient; use MatMul")
    if node.attr("transBatchA", 0) or node.attr("transBatchB", 0):
        raise Refuse("transBatchA/transBatchB have no gradient; use Transpose and MatMul")
    da = db = None
    if g.wants(0):
        pair, flags = ((b, dy), (trans_b, 1)) if trans_a else ((dy, b), (0, 1 - trans_b))
        da = _stacked(g, node, pair, flags, a)
    if g.wants(1):
        pair, flags = ((dy, a), (1, trans_a)) if trans_b else ((a, dy), (1 - trans_a, 0))
        db = _stacked(g, node, pair, flags, b)
    return da, db


def _stacked(
    g: Gradients, node: ir.Node, pair: tuple[str, str], flags: tuple[int, int], target: str
) -> str:
    alpha = node.attr("alpha", 1.0)
    product = g.op(
        "FusedMatMul", *pair, domain=ir.MICROSOFT, alpha=alpha, transA=flags[0], transB=flags[1]
    )
    return unbroadcast(g, product, product, target)


refuse("Det", "the determinant has no gradient here")
