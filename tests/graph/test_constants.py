"""Uniform constants become nodes; others stay."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnxruntime
import pytest

from edge_train.graph import ir, onnx_codec
from edge_train.graph.constants import without_uniform_constants


def _graph(**constants: np.ndarray) -> ir.Graph:
    shape = next(iter(constants.values())).shape
    name = "x"
    nodes = []
    for constant in constants:
        nodes.append(ir.make_node("Add", [name, constant], [f"after_{constant}"], constant))
        name = f"after_{constant}"
    return ir.Graph(
        "graph",
        nodes,
        [ir.Value("x", 1, shape)],
        [ir.Value(name, 1, shape)],
        {key: ir.Tensor.of(key, value) for key, value in constants.items()},
    )


def _run(graph: ir.Graph, x: np.ndarray) -> np.ndarray:
    data = onnx_codec.encode(ir.Model(graph, 10, [("", 21)]))
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    result: np.ndarray = session.run(None, {"x": x})[0]
    return result


ALMOST = np.zeros((300, 300), np.float32)
ALMOST[-1, -1] = 1e-30


@pytest.mark.parametrize("value", [0.0, -0.0, 1.5, np.nan])
def test_a_uniform_constant_is_made_when_it_is_needed(value: float) -> None:
    graph = _graph(c=np.full((300, 300), value, np.float32), other=ALMOST)
    changed = without_uniform_constants(graph)
    assert [node.op_type for node in changed.nodes] == ["ConstantOfShape", "Add", "Add"]
    assert sum(len(tensor.raw or b"") for tensor in changed.initializers.values()) < 400_000
    x = np.random.default_rng(0).standard_normal((300, 300)).astype(np.float32)
    assert _run(changed, x).tobytes() == _run(graph, x).tobytes()


def test_small_or_uneven_constants_stay() -> None:
    graph = _graph(almost=ALMOST, also=-ALMOST)
    assert without_uniform_constants(graph) is graph
    small = _graph(c=np.zeros((8, 8), np.float32))
    assert without_uniform_constants(small) is small


def test_a_damaged_constant_is_left_to_onnxruntime() -> None:
    graph = _graph(c=np.zeros((300, 300), np.float32))
    graph.initializers["c"] = replace(graph.initializers["c"], dims=(300, 299))
    assert without_uniform_constants(graph) is graph
