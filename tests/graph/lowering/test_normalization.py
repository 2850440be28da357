"""Batch normalisation beyond its table: running statistics as state, and the stock op's traps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.lowering import check, model_of, run_lowered, session
from support.rows.normalization import batch_norm_grad_row, batch_norm_row
from support.rows.tables import row_of

from edge_train.graph.lowering import lower


def test_running_statistics_replace_the_state() -> None:
    row = row_of("BatchNormInternal")
    only_y = replace(row, expected={"y": row.expected["y"]})
    lowered = lower(model_of(only_y, dynamic=True))
    assert set(lowered.updates) == {"mean", "var"}
    names = [lowered.updates["mean"], lowered.updates["var"]]
    mean, var = session(lowered.model).run(names, dict(row.feeds))
    check(
        replace(row, expected={k: row.expected[k] for k in ("running_mean", "running_var")}),
        {"running_mean": mean, "running_var": var},
    )


def test_inference_moves_nothing() -> None:
    assert not lower(model_of(row_of("BatchNormInternal: inference"), dynamic=False)).updates


@pytest.mark.parametrize("op", ["BatchNormInternal", "BatchNormalization"])
def test_fed_arrays_and_shared_constants_stay_untouched(op: str) -> None:
    # U079: stock training mode overwrites statistics in place, and with them equal constants
    row = batch_norm_row("traps", op, (8, 4, 5, 5), training_mode=1)
    x, channels = row.feeds["x"], 4
    constants = {
        "scale": np.ones(channels, np.float32),
        "bias": np.zeros(channels, np.float32),
        "mean": np.zeros(channels, np.float32),
        "var": np.ones(channels, np.float32),
    }
    axes = (0, 2, 3)
    wide = x.astype(np.float64)
    centred = wide - wide.mean(axes, keepdims=True)
    expected = {"y": centred / np.sqrt(wide.var(axes, keepdims=True) + 1e-5)}
    shared = replace(row, feeds={"x": x}, constants=constants, expected=expected)
    model = lower(model_of(shared, dynamic=False)).model
    run = session(model)
    for _ in range(3):
        check(shared, {"y": run.run(["y"], {"x": x})[0]})
    kept = {name: value.copy() for name, value in row.feeds.items()}
    run_lowered(row)
    for name, value in row.feeds.items():
        np.testing.assert_array_equal(value, kept[name])


def test_forward_and_backward_share_the_centred_input() -> None:
    forward = batch_norm_row("w", "BatchNormInternal", (3, 4, 5, 6))
    backward = batch_norm_grad_row("w", (3, 4, 5, 6), outputs="dx _ _")
    gradient = replace(
        backward.nodes[0], inputs=("dy", "x", "scale", "saved_mean", "saved_inv_std")
    )
    row = replace(
        forward,
        nodes=(*forward.nodes, gradient),
        feeds={**forward.feeds, "dy": backward.feeds["dy"]},
        expected={"y": forward.expected["y"], "dx": np.zeros((3, 4, 5, 6))},
    )
    nodes = lower(model_of(row, dynamic=False)).model.graph.nodes
    differences = {n.inputs for n in nodes if n.op_type == "Sub"}
    assert (
        len(differences) <= 2
    )  # the same x; mean reshaped by equal nodes, which onnxruntime joins
    assert {pair[0] for pair in differences} == {"x"}
