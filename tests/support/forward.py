"""Running forward models in stock onnxruntime as they are, and feeding them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from edge_train import dtypes
from edge_train.graph import ir, onnx_codec

Array = NDArray[Any]


def model_of(
    nodes: list[ir.Node],
    inputs: dict[str, tuple[ir.Dim, ...]],
    outputs: str,
    constants: dict[str, Any] | None = None,
    opset: int = 17,
) -> ir.Model:
    """A float32 model; names of ``outputs`` are separated by blanks."""
    tensors = {name: ir.Tensor.of(name, np.asarray(v)) for name, v in (constants or {}).items()}
    graph = ir.Graph(
        "model",
        nodes,
        [ir.Value(name, dtypes.FLOAT, dims) for name, dims in inputs.items()],
        [ir.Value(name, dtypes.FLOAT, None) for name in outputs.split()],
        tensors,
    )
    return ir.Model(graph, 8, [("", opset)])


def run(model: ir.Model | bytes, feeds: dict[str, Array]) -> list[Array]:
    """The outputs, without onnxruntime's own graph changes."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    data = onnx_codec.encode(model) if isinstance(model, ir.Model) else model
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    names = {value.name for value in session.get_inputs()}
    return list(session.run(None, {name: x for name, x in feeds.items() if name in names}))


def feeds_of(model: ir.Model, size: int = 4) -> dict[str, Array]:
    """Seeded values for the inputs; ``size`` stands for every size that is not declared."""
    rng = np.random.default_rng(5)
    feeds = {}
    for value in model.graph.inputs:
        if value.name in model.graph.initializers:
            continue
        shape = [dim if isinstance(dim, int) else size for dim in value.dims or ()]
        dtype = dtypes.NUMPY[value.elem_type or dtypes.FLOAT]
        whole = dtype.kind in "biu"
        array = rng.integers(0, 2, shape) if whole else rng.normal(size=shape)
        feeds[value.name] = np.asarray(array, dtype)
    return feeds


def check_same(before: ir.Model | bytes, after: ir.Model, feeds: dict[str, Array]) -> None:
    """AssertionError unless both give the same outputs."""
    for want, got in zip(run(before, feeds), run(after, feeds), strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6)


def ops(model: ir.Model) -> dict[str, int]:
    """How many nodes there are of each op."""
    return dict(Counter(node.op_type for node in model.graph.nodes))
