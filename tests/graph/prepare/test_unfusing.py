"""Joined ops in parts: the same numbers from stock onnxruntime, and no joined op left."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from support.lowering import Array, node, normals, session

from edge_train import dtypes
from edge_train.graph import ir
from edge_train.graph.autodiff import differentiate
from edge_train.graph.prepare import prepare
from edge_train.graph.prepare.unfusing import unfuse
from edge_train.graph.shapes import Shapes

X, SKIP, ROWS, GAMMA, BETA, BIAS = normals(51, (2, 3, 4), (2, 3, 4), (3, 4), (4,), (4,), (4,))
IMAGE, FILTERS, OFFSET, Z = normals(53, (2, 2, 4, 4), (3, 2, 3, 3), (3,), (2, 3, 2, 2))
A, B, C = normals(54, (4, 3), (5, 4), (5,))
NORM = {"x": X, "skip": SKIP, "gamma": GAMMA, "beta": BETA, "bias": BIAS}
CONV = {"x": IMAGE, "w": FILTERS, "b": OFFSET, "z": Z}
GEMM = {"a": A, "b": B, "c": C}

#: what a node reads, its outputs, attributes
CASES: dict[str, tuple[str, str, dict[str, Array], str, dict[str, Any]]] = {
    "skip": ("SkipLayerNormalization", "x skip gamma beta", NORM, "y", {"epsilon": 1e-5}),
    "skip, no beta": ("SkipLayerNormalization", "x skip gamma", NORM, "y", {"epsilon": 1e-5}),
    "skip, all": ("SkipLayerNormalization", "x skip gamma beta bias", NORM, "y _ _ s", {}),
    "skip, rms": ("SkipSimplifiedLayerNormalization", "x skip gamma", NORM, "y _ _ s", {}),
    "skip, rms, bias": (
        "SkipSimplifiedLayerNormalization", "x skip gamma bias", NORM, "y", {"epsilon": 0.01},
    ),
    "conv": ("FusedConv", "x w b", CONV, "y", {"activation": "Relu"}),
    "conv, sum": ("FusedConv", "x w b z", CONV, "y", {"activation": "Sigmoid"}),
    "conv, leaky": (
        "FusedConv", "x w", CONV, "y", {"activation": "LeakyRelu", "activation_params": [0.3]},
    ),
    "conv, clip": (
        "FusedConv", "x w b", CONV, "y",
        {"activation": "Clip", "activation_params": [-0.5, 0.75], "strides": [2, 1]},
    ),
    "conv, hard": (
        "FusedConv", "x w b", CONV, "y",
        {"activation": "HardSigmoid", "activation_params": [0.3, 0.4]},
    ),
    "gemm": (
        "FusedGemm", "a b c", GEMM, "y",
        {"activation": "Relu", "transA": 1, "transB": 1, "alpha": 0.5},
    ),
    "gemm, leaky": (
        "FusedGemm", "a b", GEMM, "y",
        {"activation": "LeakyRelu", "activation_alpha": 0.2, "transA": 1, "transB": 1},
    ),
}  # fmt: skip


def model(case: str) -> tuple[ir.Model, dict[str, Array]]:
    op_type, reads, pool, makes, attrs = CASES[case]
    feeds = {name: pool[name] for name in reads.split()}
    made = node(op_type, reads, makes, **attrs)
    inputs = [ir.Value(name, dtypes.FLOAT, value.shape) for name, value in feeds.items()]
    outputs = [ir.Value(name, dtypes.FLOAT, None) for name in made.outputs if name]
    graph = ir.Graph("joined", [made], inputs, outputs)
    return ir.Model(graph, 10, [("", 21), (ir.MICROSOFT, 1)]), feeds


@pytest.mark.parametrize("case", CASES)
def test_parts_compute_the_same(case: str) -> None:
    if case == "skip, rms, bias" and onnxruntime.__version__.startswith("1.20."):
        pytest.skip("onnxruntime 1.20 leaves this bias out")
    whole, feeds = model(case)
    parts = unfuse(whole)
    assert {item.domain for item in parts.graph.nodes} == {""}
    for got, wanted in zip(
        session(parts).run(None, feeds), session(whole).run(None, feeds), strict=True
    ):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_parts_have_gradients(case: str) -> None:
    whole, feeds = model(case)
    total = ir.make_node("ReduceSum", ["y"], ["loss"], "total", keepdims=0)
    whole.graph.nodes.append(total)
    ready = prepare(whole)
    _, table = differentiate(ready.graph, Shapes.of(ready), "loss", list(feeds))
    assert set(table) == set(feeds)


def test_names_in_use_are_left_alone() -> None:
    whole, _ = model("skip")
    whole.graph.nodes.append(node("Neg", "y", "y/sum", ""))
    nodes = unfuse(whole).graph.nodes
    made = [name for item in nodes for name in item.outputs if name]
    assert len(made) == len(set(made))


def test_other_models_are_returned_as_they_are() -> None:
    whole, _ = model("skip")
    whole.graph.nodes[:] = [node("Neg", "x", "y", "")]
    assert unfuse(whole) is whole
