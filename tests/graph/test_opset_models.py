"""Whole models give the same outputs at their own opset and at the target."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from support.zoo import SEIZURE, ZOO

from edge_train import dtypes
from edge_train.graph import ir, onnx_codec, opset

NAMES = [name for name in sorted(ZOO) if not ZOO[name].stochastic]


def _outputs(data: bytes, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def _feeds(model: ir.Model) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    feeds = {}
    for value in model.graph.inputs:
        shape = [dim if isinstance(dim, int) else 4 for dim in value.dims or ()]
        dtype = dtypes.NUMPY[value.elem_type or dtypes.FLOAT]
        feeds[value.name] = (
            rng.integers(0, 2, shape) if dtype.kind in "biu" else rng.normal(size=shape)
        )
        feeds[value.name] = feeds[value.name].astype(dtype)
    return feeds


PATHS = [path for name in NAMES for path in (ZOO[name].model, ZOO[name].eval_model)]


@pytest.mark.parametrize("path", [*PATHS, SEIZURE.eval_model], ids=lambda p: f"{p.parent.name}")
def test_same_outputs(path: Path) -> None:
    model = onnx_codec.load(path)
    assert (model.opset() or 99) < opset.TARGET
    feeds = _feeds(model)
    raised = onnx_codec.encode(opset.raise_opset(model))
    for want, got in zip(_outputs(path.read_bytes(), feeds), _outputs(raised, feeds), strict=True):
        # onnxruntime has another AveragePool kernel from opset 19 on: it rounds otherwise
        np.testing.assert_allclose(got, want, rtol=2e-6, atol=1e-7)
