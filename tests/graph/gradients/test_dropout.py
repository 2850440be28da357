"""Dropout drops at random: its gradient goes where its mask let the forward pass through."""

from __future__ import annotations

import numpy as np
import pytest
from support.lowering import session

from edge_train import dtypes
from edge_train.graph import ir
from edge_train.graph.autodiff import differentiate
from edge_train.graph.lowering import lower
from edge_train.graph.prepare import prepare
from edge_train.graph.shapes import Shapes

X = np.linspace(1, 2, 400, dtype=np.float32)


def _model(inputs: list[str], constants: dict[str, np.ndarray]) -> ir.Model:
    nodes = [
        ir.make_node("Dropout", inputs, ["y"], "drop"),
        ir.make_node("ReduceSum", ["y"], ["loss"], "sum", keepdims=0),
    ]
    graph = ir.Graph("row", nodes, [ir.Value("x", dtypes.FLOAT, X.shape)])
    graph.outputs = [ir.Value("loss", dtypes.FLOAT, ()), ir.Value("y", dtypes.FLOAT, X.shape)]
    graph.initializers = {name: ir.Tensor.of(name, value) for name, value in constants.items()}
    return ir.Model(graph, 8, [("", 15)])


@pytest.mark.parametrize("form", ["training", "not training", "no mode", "no ratio"])
def test_mask(form: str) -> None:
    """In the training graph it drops, whichever mode the model was exported in."""
    constants = {"r": np.array(0.25, np.float32), "t": np.array(form == "training")}
    inputs = {"no mode": ["x", "r"], "no ratio": ["x"]}.get(form, ["x", "r", "t"])
    kept = 0.5 if form == "no ratio" else 0.75
    model = prepare(_model(inputs, {n: v for n, v in constants.items() if n in inputs}))
    graph, table = differentiate(model.graph, Shapes.of(model), "loss", ["x"])
    graph.outputs.append(ir.Value(table["x"], dtypes.FLOAT, None))
    imports = [*model.opset_imports, (ir.MICROSOFT, 1)]
    run = session(lower(ir.Model(graph, 10, imports)).model).run(["y", table["x"]], {"x": X})
    passed = run[0] != 0
    np.testing.assert_allclose(run[0], np.where(passed, X / np.float32(kept), 0), rtol=1e-6)
    np.testing.assert_allclose(run[1], np.where(passed, 1 / np.float32(kept), 0), rtol=1e-6)
    assert abs(passed.mean() - kept) < 0.12
