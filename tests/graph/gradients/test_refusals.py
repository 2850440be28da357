"""Ops that no gradient passes through: refused with what to do, or cut."""

from __future__ import annotations

import numpy as np
import pytest
from support.gradients import forward_model, node, run_gradients, single

from edge_train import dtypes
from edge_train.errors import UnsupportedOp
from edge_train.graph import ir
from edge_train.graph.autodiff import differentiate
from edge_train.graph.gradients import NO_GRADIENT, REFUSED, RULES
from edge_train.graph.shapes import Shapes

X, W = np.ones((2, 3), np.float32), np.ones((3, 2), np.float32)


def graph_of(*nodes: ir.Node, **inputs: np.ndarray) -> ir.Graph:
    row = single("Mul", inputs, "x w")
    total = node("ReduceSum", "y", "loss", "", keepdims=0)
    graph = forward_model(row, nodes=[*nodes, total]).graph
    graph.value_info["f"] = ir.Value("f", dtypes.FLOAT, (2, 2))
    return graph


def test_a_fused_op_says_to_export_again() -> None:
    fused, square = node("MatMulNBits", "x w", "f"), node("Mul", "f f", "y", "")
    graph = graph_of(fused, square, x=X, w=W)
    with pytest.raises(UnsupportedOp) as caught:
        differentiate(graph, Shapes.of(graph), "loss", ["x"])
    text = str(caught.value)
    assert "MatMulNBits 'MatMulNBits_node' (domain 'com.microsoft')" in text
    assert "export the model again without graph optimization" in text


def test_a_fused_op_in_a_frozen_part_does_no_harm() -> None:
    fused, scaled = node("MatMulNBits", "x w", "f"), node("Mul", "f s", "y", "")
    graph = graph_of(fused, scaled, x=X, w=W, s=np.ones((2, 2), np.float32))
    _, gradients = differentiate(graph, Shapes.of(graph), "loss", ["s"])
    assert gradients == {"s": "s_grad"}


@pytest.mark.parametrize(
    ("op", "hint"), [("Round", "QuantizeLinear/DequantizeLinear"), ("Det", "determinant")]
)
def test_refused_ops(op: str, hint: str) -> None:
    with pytest.raises(UnsupportedOp, match=hint):
        run_gradients(single(op, {"x": X}), {"y": X})


@pytest.mark.parametrize(
    ("attrs", "x", "reason"),
    [
        ({"transBatchA": 1}, np.ones((2, 3, 3), np.float32), "transBatchA"),
        ({}, np.ones(3, np.float32), "vector"),
    ],
)
def test_forms_of_fused_matmul(attrs: dict[str, int], x: np.ndarray, reason: str) -> None:
    row = single("cm.FusedMatMul", {"x": x, "w": np.ones((3, 3), np.float32)}, attrs=attrs)
    with pytest.raises(UnsupportedOp, match=reason):
        run_gradients(row, {"y": np.ones(3)})


def test_an_op_has_one_verdict() -> None:
    assert not set(RULES) & (NO_GRADIENT | set(REFUSED))
    assert not NO_GRADIENT & set(REFUSED)
