"""Malformed models are refused with the node's name; faults of our own are not dressed up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.forward import model_of

from edge_train.errors import ArtifactError
from edge_train.graph import ir
from edge_train.graph.parameters import Choice
from edge_train.graph.prepare import prepare, tidy
from edge_train.graph.prepare.faults import explained
from edge_train.graph.training import build

GOOD = ir.make_node("Relu", ["x"], ["h"], "good")


@pytest.mark.parametrize(
    "node",
    [
        ir.make_node("If", ["h"], ["y"], "bad"),
        ir.make_node("Identity", [], ["y"], "bad"),
        ir.make_node("Dropout", [], ["y"], "bad"),
        ir.make_node("Pow", ["h"], ["y"], "bad"),
        ir.make_node("Gemm", ["h", "w"], ["y"], "bad", transA="x"),
    ],
    ids=lambda node: node.op_type,
)
def test_malformed_node(node: ir.Node) -> None:
    w = np.ones((3, 3), np.float32)
    nodes = [GOOD, node, ir.make_node("ReduceMean", ["y"], ["loss"], "mean", keepdims=0)]
    model = model_of(nodes, {"x": (2, 3)}, "loss", {"w": w}, opset=17)
    model.graph.nodes[0] = ir.make_node("MatMul", ["x", "w"], ["h"], "good")
    with pytest.raises(ArtifactError, match=rf"{node.op_type} 'bad'"):
        build(model, ["loss"], Choice(("w",)))


def test_faults_of_our_own_stay_what_they_are() -> None:
    model = model_of([GOOD], {"x": (2, 3)}, "h")
    with pytest.raises(LookupError, match="our own"), explained(model):
        raise LookupError("our own")
    with pytest.raises(ArtifactError, match="known"), explained(model):
        raise ArtifactError("known")


def test_an_identity_without_input() -> None:
    model = model_of([ir.make_node("Identity", [], ["h"], "bad"), GOOD], {"x": (2, 3)}, "h")
    model = replace(model, graph=replace(model.graph, outputs=[]))
    with pytest.raises(ArtifactError, match="malformed: Identity 'bad'"):
        prepare(tidy(model), ())
