"""Builder.scan: outputs of a body that onnxruntime would mix up, and the order of the steps."""

from __future__ import annotations

import numpy as np
import pytest
from support.lowering import Array, session

from edge_train import dtypes
from edge_train.graph import ir
from edge_train.graph.formula import ScanBody
from edge_train.graph.lowering.builder import Builder, Refuse
from edge_train.graph.shapes import Shapes

_X = np.arange(12, dtype=np.float32).reshape(4, 3)


def _builder() -> Builder:
    inputs = [ir.Value("x", dtypes.FLOAT, ("T", 3)), ir.Value("s", dtypes.FLOAT, (3,))]
    graph = ir.Graph("outer", inputs=inputs)
    return Builder(graph, Shapes.of(graph))


def _run(b: Builder, body: ScanBody, backwards: bool = False) -> list[Array]:
    """The last state and the stacked outputs; 1 is the first state."""
    last, stacked = b.scan(body, ["s"], ["x"], backwards)
    outputs = [ir.Value(name, dtypes.FLOAT, None) for name in (*last, *stacked)]
    graph = ir.Graph("outer", b.nodes, b.source.inputs, outputs, b.constants)
    run = session(ir.Model(graph, 10, [("", 21)]))
    return list(run.run(None, {"x": _X, "s": np.ones(3, np.float32)}))


@pytest.mark.parametrize("backwards", [False, True])
def test_sums_from_either_end(backwards: bool) -> None:
    b = _builder()

    def step(states: list[str], slices: list[str]) -> tuple[list[str], list[str]]:
        total = b.add(states[0], slices[0])
        return [total], [total, total]

    last, sums, again = _run(b, step, backwards)
    order = _X[::-1] if backwards else _X
    wanted = 1 + np.cumsum(order, 0)
    np.testing.assert_array_equal(last, wanted[-1])
    np.testing.assert_array_equal(sums, wanted[::-1] if backwards else wanted)
    np.testing.assert_array_equal(again, sums)


def test_inputs_and_outer_tensors_may_be_outputs() -> None:
    b = _builder()
    last, states, slices, outer = _run(b, lambda s, x: (x, [*s, *x, "s"]))
    np.testing.assert_array_equal(last, _X[-1])
    np.testing.assert_array_equal(slices, _X)
    np.testing.assert_array_equal(states, [np.ones(3), *_X[:-1]])
    np.testing.assert_array_equal(outer, np.ones((4, 3)))


def test_a_refusing_body_leaves_the_graph_alone() -> None:
    b = _builder()
    b.neg("x")
    before = list(b.nodes)

    def step(states: list[str], slices: list[str]) -> tuple[list[str], list[str]]:
        b.neg(slices[0])
        raise Refuse("no")

    with pytest.raises(Refuse):
        b.scan(step, ["s"], ["x"])
    assert b.nodes == before
