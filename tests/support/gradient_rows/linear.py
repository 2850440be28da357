"""Gradient rows of matrix products."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
from support.gradients import Row, chain, node, normals, single

M, K, N = 3, 4, 2
A, B, FULL, ROW, COLUMN, POINT = normals(3, (M, K), (K, N), (M, N), (N,), (M, 1), ())

Shape = tuple[int, ...]

#: form -> shapes of the operands
PRODUCTS: dict[str, tuple[Shape, Shape]] = {
    "": ((2, 3, 4), (4, 5)),
    ":matrices": ((3, 4), (4, 2)),
    ":vector_right": ((3, 4), (4,)),
    ":vector_left": ((4,), (4, 2)),
    ":vectors": ((4,), (4,)),
    ":vector_stack": ((4,), (2, 4, 3)),
    ":stack_vector": ((2, 3, 4), (4,)),
    ":stacks": ((2, 3, 4), (2, 4, 2)),
    ":right_stack": ((3, 4), (2, 4, 2)),
    ":one_left": ((1, 3, 4), (2, 4, 2)),
    ":one_right": ((2, 3, 4), (1, 4, 2)),
    ":grids": ((2, 1, 2, 3), (3, 3, 2)),
    ":deep": ((2, 2, 2, 3), (3, 2)),
    ":one_row": ((1, 4), (4, 2)),
}


def matmul(form: str, shapes: tuple[Shape, Shape], sized: tuple[str, ...] = ()) -> Row:
    a, b = normals(4, *shapes)
    return single(f"MatMul{form}", {"a": a, "b": b}, sized=sized)


def gemm(trans_a: int, trans_b: int, c: str, alpha: float, beta: float) -> Row:
    offsets = {"full": FULL, "row": ROW, "column": COLUMN, "point": POINT, "none": None}
    inputs = {"a": A.T.copy() if trans_a else A, "b": B.T.copy() if trans_b else B}
    if offsets[c] is not None:
        inputs["c"] = offsets[c]
    attrs = {"transA": trans_a, "transB": trans_b, "alpha": alpha, "beta": beta}
    return single(f"Gemm:{trans_a}{trans_b}_{c}_{alpha}_{beta}", inputs, attrs=attrs)


def fused(form: str, shapes: tuple[Shape, Shape], **attrs: Any) -> Row:
    a, b = normals(5, *shapes)
    if attrs.get("transA"):
        a = np.swapaxes(a, -1, -2).copy()
    if attrs.get("transB"):
        b = np.swapaxes(b, -1, -2).copy()
    return single(f"cm.FusedMatMul{form}", {"a": a, "b": b}, attrs=attrs)


#: equation -> shapes of the operands
EQUATIONS: dict[str, tuple[Shape, ...]] = {
    "ij,jk->ik": ((2, 3), (3, 4)),
    "bhqd,bhkd->bhqk": ((2, 2, 3, 2), (2, 2, 4, 2)),
    "bij,bjk": ((2, 3, 2), (2, 2, 3)),
    "ij->ji": ((2, 3),),
    "ij->i": ((2, 3),),
    "ij->": ((2, 3),),
    "ba": ((2, 3),),
    "ij,ij->": ((2, 3), (2, 3)),
    "i,j->ij": ((2,), (3,)),
    "ii->i": ((3, 3),),
    "ii": ((3, 3),),
    "iij->j": ((3, 3, 2),),
    "iii->": ((2, 2, 2),),
    "ij,k->j": ((2, 3), (4,)),
    "ij,jk,kl->il": ((2, 3), (3, 2), (2, 3)),
    "i,i,i->i": ((3,), (3,), (3,)),
    "...ij,...jk->...ik": ((2, 1, 2, 3), (1, 3, 3, 2)),
    "...ij,jk": ((2, 2, 3), (3, 2)),
    "...->...": ((2, 3),),
    "...i->...": ((2, 3),),
    "a...,...->a...": ((2, 3), (3,)),
    "ij,ij->ij": ((1, 3), (2, 3)),
    "ij,ik->ik": ((1, 5), (3, 4)),
    "ij,ik->k": ((1, 5), (3, 4)),
    "iij,i->i": ((1, 1, 2), (3,)),
    "kij,jl->i": ((3, 2, 1), (4, 2)),
    " i j , j k -> i k ": ((2, 3), (3, 4)),
    "Ab,bC->AC": ((2, 3), (3, 2)),
}


def einsum(equation: str, shapes: tuple[Shape, ...]) -> Row:
    arrays = normals(6, *shapes)
    inputs = {f"x{index}": value for index, value in enumerate(arrays)}
    # "ij,ij" with a size of 1 against 2: onnxruntime broadcasts it, NumPy does too
    return single(f"Einsum:{equation}", inputs, attrs={"equation": equation})


ROWS: list[Row] = [
    *(matmul(form, shapes) for form, shapes in PRODUCTS.items()),
    matmul(":weights_sized", ((2, 3, 4), (4, 5)), sized=("b",)),
    single("MatMul:only_left", {"a": A}, constants={"b": B}),
    single("MatMul:only_right", {"b": B}, "c b", constants={"c": A}),
    chain("MatMul:square", [node("MatMul", "a a", "y", "")], {"a": A[:, :3].copy()}),
    single("Gemm", {"a": A, "b": B, "c": ROW}),
    *(gemm(a, b, "row", 0.5, 2.0) for a, b in product((0, 1), repeat=2)),
    *(gemm(1, 1, c, 1.0, 1.0) for c in ("full", "row", "column", "point", "none")),
    *(gemm(0, 1, c, -1.5, 0.5) for c in ("full", "column", "point", "none")),
    gemm(0, 0, "row", 0.0, 1.0),
    gemm(0, 0, "row", 1.0, 0.0),
    fused("", ((2, 3, 4), (2, 4, 2)), alpha=0.5, transB=1),
    *(
        fused(f":{a}{b}", ((2, 3, 4), (4, 2)), transA=a, transB=b, alpha=2.0)
        for a, b in product((0, 1), repeat=2)
    ),
    fused(":matrices", ((3, 4), (4, 2)), transA=1, transB=1),
    fused(":broadcast", ((1, 3, 4), (2, 4, 2)), transA=1),
    single("Einsum", {"a": A, "b": B}, attrs={"equation": "ij,jk->ik"}),
    *(einsum(equation, shapes) for equation, shapes in EQUATIONS.items()),
]
