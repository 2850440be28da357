"""What stock onnxruntime computes wrong in some supported release, and here does not."""

from __future__ import annotations

import numpy as np
import pytest

from edge_train.graph import ir
from edge_train.graph.lowering import lower
from edge_train.session import make_session


def _pooled(x: np.ndarray, pads: tuple[int, ...], strides: tuple[int, ...]) -> np.ndarray:
    padded = np.pad(x, ((0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    return windows[:, :, :: strides[0], :: strides[1]].mean((4, 5))


@pytest.mark.parametrize("version", [12, 19, 21])
@pytest.mark.parametrize("strides", [(1, 1), (2, 2)])
@pytest.mark.parametrize("pads", [(0, 0, 1, 1), (1, 0, 1, 1), (2, 0, 0, 1), (1, 0, 1, 0), (1,) * 4])
def test_average_pool_that_counts_its_padding(
    pads: tuple[int, ...], strides: tuple[int, ...], version: int, rng: np.random.Generator
) -> None:
    x = rng.standard_normal((2, 3, 5, 5)).astype(np.float32)
    options = {"kernel_shape": (3, 3), "pads": pads, "strides": strides, "count_include_pad": 1}
    nodes = [ir.make_node("AveragePool", ["x"], ["y"], **options)]
    values = [ir.Value("x", 1, x.shape)], [ir.Value("y", 1, None)]
    model = ir.Model(ir.Graph("g", nodes, *values), 8, [("", version)])
    got = make_session(lower(model).model, "graph").run(None, {"x": x})[0]
    np.testing.assert_allclose(got, _pooled(x, pads, strides), atol=1e-6)


def test_simplified_layer_normalization_with_bias(rng: np.random.Generator) -> None:
    feeds = {n: rng.standard_normal(4).astype(np.float32) for n in ("gamma", "bias")}
    feeds |= {n: rng.standard_normal((2, 3, 4)).astype(np.float32) for n in ("x", "skip")}
    reads, makes = ["x", "skip", "gamma", "bias"], ["y", "", "", "s"]
    node = ir.make_node("SkipSimplifiedLayerNormalization", reads, makes, "", ir.MICROSOFT)
    inputs = [ir.Value(name, 1, feeds[name].shape) for name in reads]
    graph = ir.Graph("g", [node], inputs, [ir.Value("y", 1, None), ir.Value("s", 1, None)])
    model = ir.Model(graph, 8, [("", 21), (ir.MICROSOFT, 1)])
    y, s = make_session(lower(model).model, "graph").run(None, feeds)
    total = feeds["x"] + feeds["skip"] + feeds["bias"]
    np.testing.assert_allclose(s, total, rtol=1e-6)
    scale = np.sqrt(np.square(total).mean(-1, keepdims=True) + 1e-12)
    np.testing.assert_allclose(y, total / scale * feeds["gamma"], rtol=1e-5)


def test_x_times_sigmoid_in_double(rng: np.random.Generator) -> None:
    x = rng.standard_normal((2, 3))
    nodes = [ir.make_node("Sigmoid", ["x"], ["s"]), ir.make_node("Mul", ["x", "s"], ["y"])]
    values = [ir.Value("x", 11, x.shape)], [ir.Value("y", 11, None)]
    model = ir.Model(ir.Graph("g", nodes, *values), 8, [("", 21)])
    got = make_session(lower(model).model, "graph").run(None, {"x": x})[0]
    np.testing.assert_allclose(got, x / (1 + np.exp(-x)), rtol=1e-12)


def test_an_omitted_last_input_is_left_out() -> None:
    """Otherwise onnxruntime's fusion ends the process as the session is made."""
    nodes = [
        ir.make_node("Add", ["x", "x"], ["total"]),
        ir.make_node("LayerNormalization", ["total", "scale", ""], ["y"]),
    ]
    feeds = {"x": np.array([[1, 2, 6]], np.float32), "scale": np.ones(3, np.float32)}
    inputs = [ir.Value(name, 1, value.shape) for name, value in feeds.items()]
    graph = ir.Graph("g", nodes, inputs, [ir.Value("y", 1, None)])
    lowered = lower(ir.Model(graph, 8, [("", 21)])).model
    assert [len(item.inputs) for item in lowered.graph.nodes] == [2, 2]
    (y,) = make_session(lowered, "graph").run(None, feeds)
    centred = 2 * feeds["x"] - 6
    np.testing.assert_allclose(y, centred / centred.std(), rtol=1e-5)


@pytest.mark.parametrize("makes", [("", "y"), ("a", "y"), ("", "y", "")])
def test_outputs_that_a_loop_leaves_out(makes: tuple[str, ...]) -> None:
    """Of a Scan, and of a Split in its body: onnxruntime asks for all of them."""
    split = ir.make_node("Split", ["p"], ["", "half"], num_outputs=2)
    nodes = [
        ir.make_node("Add", ["h", "x"], ["p"]),
        split,
        ir.make_node("Identity", ["p"], ["e"]),
    ]
    names = (["h", "x"], ["p", "half", "e"])
    body = ir.Graph("body", nodes, *([ir.Value(n, 1, None) for n in part] for part in names))
    scan = ir.make_node("Scan", ["s", "xs"], makes, "scan", body=body, num_scan_inputs=1)
    feeds = {"s": np.array([1, 2], np.float32), "xs": np.arange(6, dtype=np.float32).reshape(3, 2)}
    inputs = [ir.Value(name, 1, value.shape) for name, value in feeds.items()]
    graph = ir.Graph("g", [scan], inputs, [ir.Value("y", 1, None)])
    (y,) = make_session(lower(ir.Model(graph, 8, [("", 21)])).model, "graph").run(None, feeds)
    np.testing.assert_array_equal(y, feeds["s"][1] + np.cumsum(feeds["xs"][:, 1:], 0))


@pytest.mark.parametrize("makes", [("", "y"), ("y",)])
def test_outputs_that_a_branch_leaves_out(makes: tuple[str, ...]) -> None:
    def branch(name: str) -> ir.Graph:
        ends = [f"{name}_{at}" for at in (1, 2)]
        nodes = [ir.make_node("Neg", ["x"], [end]) for end in ends]
        return ir.Graph(name, nodes, [], [ir.Value(end, 1, None) for end in ends])

    then, other = branch("then"), branch("else")
    node = ir.make_node("If", ["c"], makes, "if", then_branch=then, else_branch=other)
    inputs = [ir.Value("c", 9, ()), ir.Value("x", 1, (2,))]
    graph = ir.Graph("g", [node], inputs, [ir.Value("y", 1, None)])
    feeds = {"c": np.array(True), "x": np.array([1, 2], np.float32)}
    (y,) = make_session(lower(ir.Model(graph, 8, [("", 21)])).model, "graph").run(None, feeds)
    np.testing.assert_array_equal(y, -feeds["x"])


@pytest.mark.parametrize("makes", [("y",), ("", "y")])
def test_outputs_that_a_counted_loop_leaves_out(makes: tuple[str, ...]) -> None:
    nodes = [
        ir.make_node("Identity", ["go"], ["on"]),
        ir.make_node("Add", ["h", "h"], ["twice"]),
        ir.make_node("ReduceMax", ["twice"], ["top"], keepdims=0),
    ]
    inputs = [ir.Value("at", 7, ()), ir.Value("go", 9, ()), ir.Value("h", 1, (2,))]
    outputs = [ir.Value("on", 9, ()), ir.Value("twice", 1, (2,)), ir.Value("top", 1, ())]
    body = ir.Graph("body", nodes, inputs, outputs)
    node = ir.make_node("Loop", ["times", "", "x"], makes, "loop", body=body)
    feeds = {"times": np.array(3), "x": np.array([1, 2], np.float32)}
    given = [ir.Value("times", 7, ()), ir.Value("x", 1, (2,))]
    graph = ir.Graph("g", [node], given, [ir.Value("y", 1, None)])
    (y,) = make_session(lower(ir.Model(graph, 8, [("", 21)])).model, "graph").run(None, feeds)
    np.testing.assert_array_equal(y, [8, 16] if makes == ("y",) else [4, 8, 16])
