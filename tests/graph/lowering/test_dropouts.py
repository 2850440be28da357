"""Fused dropouts with real masks: forward and gradient agree, and bits that somebody reads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.lowering import Row, model_of, node, normals, session
from support.rows.tables import row_of

from edge_train import dtypes
from edge_train.errors import UnsupportedOp
from edge_train.graph import ir
from edge_train.graph.lowering import lower

SHAPE = (40, 50)
RATIO = 0.25
CONSTANTS = {"ratio": np.array(RATIO, np.float32), "training": np.array(True)}


def pair(forward: ir.Node, backward: ir.Node, outputs: list[str]) -> dict[str, np.ndarray]:
    """Runs both over ones: what is kept shows in the values."""
    feeds = {"x": np.ones(SHAPE, np.float32), "dy": np.ones(SHAPE, np.float32)}
    zeros = {name: np.zeros(SHAPE) for name in outputs}
    row = Row("pair", (forward, backward), feeds, zeros, CONSTANTS)
    lowered = lower(model_of(row, dynamic=True))
    results = session(lowered.model).run(list(lowered.results), feeds)
    return dict(zip(lowered.results, results, strict=True))


@pytest.mark.parametrize("training", ["training", "_"])
def test_the_gradient_goes_where_values_went(training: str) -> None:
    got = pair(
        node("BitmaskDropout", "x ratio training", "y mask"),
        node("BitmaskDropoutGrad", f"dy mask ratio {training}".removesuffix(" _"), "dx"),
        ["y", "dx"],
    )
    kept = got["y"] != 0
    assert 0.6 < kept.mean() < 0.9
    np.testing.assert_allclose(got["y"][kept], 1 / (1 - RATIO), rtol=1e-6)
    np.testing.assert_array_equal(got["dx"], got["y"])


@pytest.mark.parametrize("dynamic", [False, True], ids=["constant", "fed"])
def test_a_dropout_whose_mask_nobody_reads_still_drops(dynamic: bool) -> None:
    """onnxruntime takes such a node out of the graph."""
    feeds = {"x": np.ones(SHAPE, np.float32)}
    options = {**CONSTANTS} if not dynamic else {}
    fed = {**feeds, **({} if not dynamic else CONSTANTS)}
    nodes = (node("Dropout", "x ratio training", "y", "", seed=3),)
    row = Row("w", nodes, fed, {"y": np.zeros(SHAPE)}, options, sized=("ratio", "training"))
    lowered = lower(model_of(row, dynamic=False))
    (y,) = session(lowered.model).run(["y"], fed)
    assert 0.6 < (y != 0).mean() < 0.9
    np.testing.assert_allclose(y[y != 0], 1 / (1 - RATIO), rtol=1e-6)


def test_a_dropout_that_does_nothing_costs_nothing() -> None:
    feeds = {"x": np.ones(SHAPE, np.float32)}
    nodes = (node("Dropout", "x ratio", "y", ""), node("Relu", "y", "z", ""))
    row = Row("w", nodes, feeds, {"z": np.ones(SHAPE)}, {"ratio": CONSTANTS["ratio"]})
    lowered = lower(model_of(row, dynamic=False))
    assert [n.op_type for n in lowered.model.graph.nodes] == ["Relu"]


def test_bias_and_residual_around_a_dropout() -> None:
    (bias,) = normals(141, SHAPE[-1:])
    row = row_of("BiasDropout: residual")
    forward = replace(row.nodes[0], inputs=("x", "b", "r", "ratio", "training"))
    feeds = {"x": np.ones(SHAPE, np.float32), "b": bias, "r": np.full(SHAPE, 5, np.float32)}
    model = Row("w", (forward,), feeds, {"y": np.zeros(SHAPE)}, CONSTANTS, sized=("b",))
    lowered = lower(model_of(model, dynamic=False))
    (y,) = session(lowered.model).run(["y"], feeds)
    dropped = y == 5
    assert 0.1 < dropped.mean() < 0.4
    expected = np.broadcast_to(5 + (1 + bias) / (1 - RATIO), SHAPE)
    np.testing.assert_allclose(y[~dropped], expected[~dropped], rtol=1e-5)


def test_softmax_and_dropout_backwards() -> None:
    """With y the softmax and m the mask: y (m dy / keep - sum of y m dy / keep)."""
    rng = np.random.default_rng(0)
    feeds = {
        "x": rng.standard_normal(SHAPE).astype(np.float32),
        "bias": rng.standard_normal(SHAPE[-1:]).astype(np.float32),
        "dy": rng.standard_normal(SHAPE).astype(np.float32),
    }
    nodes = (
        node("BiasSoftmaxDropout", "x bias ratio", "y mask softmax", is_inner_broadcast=0),
        node("SoftmaxDropoutGrad", "dy mask softmax ratio", "dx"),
    )
    zeros = {name: np.zeros(SHAPE) for name in ("y", "softmax", "dx")}
    row = Row("w", nodes, feeds, zeros, {"ratio": CONSTANTS["ratio"]}, sized=("bias",))
    lowered = lower(model_of(row, dynamic=True))
    y, softmax, dx = session(lowered.model).run(["y", "softmax", "dx"], feeds)
    through = np.where(y != 0, feeds["dy"] / (1 - RATIO), 0).astype(np.float64)
    expected = softmax * (through - (softmax * through).sum(1, keepdims=True))
    np.testing.assert_allclose(dx, expected, rtol=1e-4, atol=1e-7)


def test_bits_that_another_op_reads_are_refused() -> None:
    with pytest.raises(UnsupportedOp, match=r"mask 'mask' is read by Identity"):
        pair(
            node("BitmaskDropout", "x ratio training", "y mask"),
            node("Identity", "mask", "dx", ""),
            ["y", "dx"],
        )


def test_bits_that_are_an_output_are_refused() -> None:
    nodes = (node("BitmaskDropout", "x ratio training", "y mask"),)
    feeds = {"x": np.ones(SHAPE, np.float32)}
    model = model_of(Row("w", nodes, feeds, {"y": np.zeros(SHAPE)}, CONSTANTS), dynamic=False)
    model.graph.outputs.append(ir.Value("mask", dtypes.UINT32, None))
    with pytest.raises(UnsupportedOp, match="is an output of the graph"):
        lower(model)
