"""The model of tests/golden/legacy and tests/golden/releases, and how their makers begin.

For make_legacy_golden.py and make_release_golden.py, on Python 3.9 and releases of years ago.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

STEPS = 3


def without_torch() -> None:
    """To call before a module of onnxruntime.training is imported.

    The package itself asks for torch, which on-device training does not need.
    """
    package = types.ModuleType("onnxruntime.training")
    package.__path__ = [str(Path(onnxruntime.__file__).parent / "training")]
    sys.modules["onnxruntime.training"] = package


def forward(node_names: Sequence[str] = ("", "", "")) -> onnx.ModelProto:
    """An MLP 4-6-3 with ReLU, its weights drawn from seed 7."""
    rng = np.random.default_rng(7)
    shapes = {"w1": (4, 6), "b1": (6,), "w2": (6, 3), "b2": (3,)}
    weights = [
        numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32) / 2, name)
        for name, shape in shapes.items()
    ]
    first, relu, second = (name or None for name in node_names)
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["h"], name=first),
        helper.make_node("Relu", ["h"], ["r"], name=relu),
        helper.make_node("Gemm", ["r", "w2", "b2"], ["y"], name=second),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 3])
    graph = helper.make_graph(nodes, "mlp", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8)
