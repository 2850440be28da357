"""Heads of attention: (B, S, H D) to (B, H, S, D) with the bias, and back with its gradient.

The transposes that swap a matrix's axes go into the products that read or make it.
"""

from __future__ import annotations

from dataclasses import replace

from edge_train import dtypes
from edge_train.graph import ir
from edge_train.graph.lowering.fused.rewriting import (
    Rewriter,
    bias_of,
    is_native,
    is_stock,
    sums_rows,
)

_SWAP_INNER = (0, 2, 1, 3)


def fold_products(r: Rewriter, index: int, node: ir.Node) -> None:
    """Transposes of the last two axes around a matrix product: (A B)^T = B^T A^T."""
    if _swaps_last(r, node):
        _turn_product(r, index, node)
    elif _is_product(r, node):
        flags = [bool(node.attr(f"trans{side}", 0)) for side in "AB"]
        inputs = list(node.inputs)
        for side, name in enumerate(node.inputs):
            turned = r.maker(name, "Transpose")
            if turned is not None and _swaps_last(r, turned):
                inputs[side], flags[side] = turned.inputs[0], not flags[side]
        if tuple(inputs) != node.inputs:
            r.nodes[index] = _product(node, tuple(inputs), flags)


def _turn_product(r: Rewriter, index: int, node: ir.Node) -> None:
    number = r.number(node.inputs[0])
    made = r.nodes[number] if number >= 0 else None
    if made is None or not _is_product(r, made) or not r.only_read_by(made.outputs[0], index):
        return
    flags = [not made.attr(f"trans{side}", 0) for side in "BA"]
    turned = _product(made, made.inputs[::-1], flags)
    r.nodes[number] = replace(turned, outputs=node.outputs)
    r.nodes[index] = None


def _product(node: ir.Node, inputs: tuple[str, ...], flags: list[bool]) -> ir.Node:
    kept = {"alpha": node.attr("alpha", 1.0), "transA": int(flags[0]), "transB": int(flags[1])}
    return ir.make_node("FusedMatMul", inputs, node.outputs, node.name, ir.MICROSOFT, **kept)


def _is_product(r: Rewriter, node: ir.Node) -> bool:
    fused = (node.domain, node.op_type) == (ir.MICROSOFT, "FusedMatMul")
    if not (fused or is_stock(node, "MatMul")):
        return False
    if node.attr("transBatchA", 0) or node.attr("transBatchB", 0):
        return False
    ranks = [r.b.shapes.rank(name) or 0 for name in node.inputs]
    floats = all(r.b.shapes.elem_type(name) == dtypes.FLOAT for name in node.inputs)
    return floats and ranks[0] == ranks[1] and ranks[0] > 1


def _swaps_last(r: Rewriter, node: ir.Node) -> bool:
    perm = node.attr("perm") if is_stock(node, "Transpose") else None
    if not perm or len(perm) < 2:
        return False
    last = len(perm) - 1
    return tuple(perm) == (*range(last - 1), last, last - 1)


def take_heads(r: Rewriter, index: int, node: ir.Node) -> None:
    """(Add of a bias, Reshape,) Transpose: one pass."""
    if not _is_inner_swap(r, node):
        return
    x, bias = node.inputs[0], ""
    split = r.maker(x, "Reshape")
    joined = r.maker(split.inputs[0], "Add") if split is not None else None
    if split is not None and joined is not None and r.only_read_by(x, index):
        found = _head_bias(r, split, joined)
        if found is not None:
            flat, bias = found
            r.nodes[r.number(x)] = replace(split, inputs=(flat, *split.inputs[1:]))
    inputs = (x, bias) if bias else (x,)
    r.nodes[index] = ir.make_node("Heads", inputs, node.outputs, node.name, ir.NATIVE)


def _head_bias(r: Rewriter, split: ir.Node, joined: ir.Node) -> tuple[str, str] | None:
    """(x, bias) of the Add whose last axis the Reshape splits in two."""
    found, dims = bias_of(r, joined), r.b.shapes.dims(split.outputs[0])
    if (
        found is None
        or dims is None
        or not r.only_read_by(joined.outputs[0], r.number(split.outputs[0]))
    ):
        return None
    size = r.b.shapes.dims(found[1])
    whole = isinstance(dims[2], int) and isinstance(dims[3], int)
    return found if whole and size == (int(dims[2] or 0) * int(dims[3] or 0),) else None


def take_heads_back(r: Rewriter, index: int, node: ir.Node) -> None:
    """Transpose, Reshape, and the sum over all rows, which is the gradient of a bias."""
    if not is_native(node, "Heads") or len(node.inputs) != 1:
        return
    readers = r.readers(node.outputs[0])
    joined = r.nodes[readers[0]] if len(readers) == 1 else None
    if joined is None or not is_stock(joined, "Reshape"):
        return
    dims, flat = r.b.shapes.dims(node.outputs[0]), r.b.shapes.dims(joined.outputs[0])
    if (
        dims is None
        or flat is None
        or len(dims) != 4
        or not all(isinstance(d, int) for d in dims[2:])
    ):
        return
    if flat[-1] != int(dims[2] or 0) * int(dims[3] or 0):
        return
    for reader in r.readers(joined.outputs[0]):
        reduced = r.nodes[reader]
        if reduced is not None and is_stock(reduced, "ReduceSum") and sums_rows(r, reduced):
            outputs = (node.outputs[0], reduced.outputs[0])
            r.nodes[index] = replace(node, op_type="HeadsGrad", outputs=outputs)
            r.nodes[reader] = None
            return


def _is_inner_swap(r: Rewriter, node: ir.Node) -> bool:
    if not is_stock(node, "Transpose") or tuple(node.attr("perm") or ()) != _SWAP_INNER:
        return False
    return r.b.shapes.elem_type(node.inputs[0]) == dtypes.FLOAT
