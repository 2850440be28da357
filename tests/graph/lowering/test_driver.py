"""The walk over a graph: accumulators, names of outputs, what is refused and how it is told."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.lowering import Row, model_of, node, normals, session
from support.rows.tables import row_of

from edge_train import dtypes
from edge_train.errors import UnsupportedOp
from edge_train.graph import ir
from edge_train.graph.lowering import accumulating, lower


def training_model() -> ir.Model:
    """y = relu'(x) dy summed into a buffer, as artifacts write it."""
    model = model_of(row_of("ReluGrad"), dynamic=False)
    graph = model.graph
    shape = graph.inputs[0].dims
    graph.nodes.append(node("InPlaceAccumulatorV2", "buffer dx reset", "done"))
    graph.inputs.append(ir.Value("buffer", dtypes.FLOAT, shape))
    graph.inputs.append(ir.Value("reset", dtypes.BOOL, (1,)))
    graph.outputs[:] = [ir.Value("done", dtypes.BOOL, (1,))]
    return model


def test_an_accumulator_becomes_a_gradient_output() -> None:
    row, lowered = row_of("ReluGrad"), lower(training_model())
    assert list(lowered.gradients) == ["buffer"]
    assert lowered.results == ()
    run = session(lowered.model)
    assert [value.name for value in run.get_inputs()] == list(row.feeds)
    got = run.run([lowered.gradients["buffer"]], dict(row.feeds))[0]
    np.testing.assert_allclose(got, row.expected["dx"], rtol=1e-6)


def test_accumulating_adds_the_buffer() -> None:
    row, lowered = row_of("ReluGrad"), lower(training_model())
    held = np.full(row.expected["dx"].shape, 2.0, np.float32)
    run = session(accumulating(lowered))
    got = run.run([lowered.gradients["buffer"]], {**row.feeds, "buffer": held})[0]
    np.testing.assert_allclose(got, row.expected["dx"] + 2.0, rtol=1e-6)


@pytest.mark.parametrize("read", [False, True], ids=["alone", "read by another"])
def test_a_product_adds_itself_to_the_buffer(read: bool) -> None:
    """A Gemm takes the buffer as its addend, whatever its beta was; not where others read it."""
    dy, x, held = normals(3, (5, 2), (5, 3), (2, 3))
    nodes = [
        node("Gemm", "dy x", "dw", "", transA=1, beta=0.0),
        node("InPlaceAccumulatorV2", "buffer dw reset", "done"),
    ]
    expected = {"twice": np.zeros((2, 3))} if read else {}
    nodes += [node("Add", "dw dw", "twice", "")] if read else []
    feeds = {"dy": dy, "x": x, "buffer": held, "reset": np.array([False])}
    row = Row("gemm", tuple(nodes), feeds, {"done": np.array([True]), **expected})
    lowered = lower(model_of(row, dynamic=False))
    model = accumulating(lowered)
    assert any(n.name.startswith("accumulate/") for n in model.graph.nodes) is read
    names = {"dy": dy, "x": x, "buffer": held}
    got = session(model).run([lowered.gradients["buffer"]], names)[0]
    np.testing.assert_allclose(got, dy.T @ x + held, rtol=1e-5)


def test_an_accumulator_read_inside_is_refused() -> None:
    model = training_model()
    model.graph.nodes[-1] = node("InPlaceAccumulatorV2", "buffer dx reset", "done sum")
    assert list(lower(model).gradients) == ["buffer"]  # nobody reads it
    model.graph.nodes.append(ir.make_node("Neg", ["sum"], ["minus"]))
    with pytest.raises(UnsupportedOp, match="sum is read inside"):
        lower(model)


def test_every_refused_node_is_listed() -> None:
    row = row_of("ResizeGrad")
    nodes = tuple(
        replace(node("ResizeGrad", "dy x", name, mode="area"), name=f"resize {name}")
        for name in ("y", "z")
    )
    wanted = {"y": row.expected["dx"], "z": row.expected["dx"]}
    with pytest.raises(UnsupportedOp) as caught:
        lower(model_of(replace(row, nodes=nodes, expected=wanted), dynamic=False))
    text = str(caught.value)
    assert "ResizeGrad 'resize y' (domain 'com.microsoft')" in text
    assert "resize z" in text


def test_a_result_keeps_its_name() -> None:
    lowered = lower(model_of(row_of("TanhGrad"), dynamic=True))
    assert lowered.results == ("dx",)
    assert [value.name for value in lowered.model.graph.outputs] == ["dx"]


def test_nodes_nobody_needs_are_gone() -> None:
    row = row_of("BatchNormInternal")
    wanted = {"saved_mean": row.expected["saved_mean"]}
    model = model_of(replace(row, expected=wanted, feeds=dict(row.feeds)), dynamic=False)
    lowered = lower(model)
    ops = [item.op_type for item in lowered.model.graph.nodes]
    assert "BatchNormalization" not in ops
    assert "Reciprocal" not in ops


def test_lowering_the_same_model_twice_gives_the_same() -> None:
    names = [
        [item.name for item in lower(model_of(row_of("ConvGrad"), dynamic=True)).model.graph.nodes]
        for _ in range(2)
    ]
    assert names[0] == names[1]
    assert len(set(names[0])) == len(names[0])
