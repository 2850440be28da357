"""Training mode: what Dropout and BatchNormalization become."""

from __future__ import annotations

import numpy as np
import pytest
from support.forward import model_of, ops

from edge_train.graph import ir
from edge_train.graph.prepare import prepare

STATISTICS = {name: np.ones(3, np.float32) for name in ("s", "b", "m", "v")}


@pytest.mark.parametrize(("ratio", "left"), [(0.0, {}), (0.5, {"Dropout": 1})])
def test_dropout_of_nothing_goes(ratio: float, left: dict[str, int]) -> None:
    nodes = [
        ir.make_node("Dropout", ["x", "r"], ["h"], "drop"),
        ir.make_node("Neg", ["h"], ["y"], "neg"),
    ]
    model = model_of(nodes, {"x": (None, 3)}, "y", {"r": np.float32(ratio)})
    prepared = prepare(model, ())
    assert ops(prepared) == {**left, "Neg": 1}
    if left:
        mode = prepared.graph.nodes[0].inputs[2]
        assert prepared.graph.initializers[mode].array() == np.array(True)


def test_statistics_outputs_keep_their_names() -> None:
    inputs = ["x", "s", "b", "m", "v"]
    node = ir.make_node("BatchNormalization", inputs, ["y", "nm", "nv"], "bn", training_mode=1)
    prepared = prepare(model_of([node], {"x": (None, 3)}, "y", STATISTICS))
    made = prepared.graph.nodes[0]
    assert made.op_type == "BatchNormInternal"
    assert made.outputs == ("y", "nm", "nv", "bn_saved_mean", "bn_saved_inv_std")
