"""Convolutional nets beside the live reference, and with sizes that it needs fixed left open."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from support.reference import Reference
from support.training import GRADIENT, LOSS, gradient_errors, module_of, set_parameters
from support.zoo import Artifacts

STEPS = 3
Sizes = tuple[int | str, ...]


def conv_net(pool: str, sizes: Sizes, group: int = 1, stride: int = 1) -> bytes:
    """Conv-Relu-pool-Conv-GlobalAveragePool-Gemm, four classes."""
    rng = np.random.default_rng(61)
    weights = {
        "w1": rng.standard_normal((8, 3, 3, 3)) / 5,
        "b1": rng.standard_normal(8) / 5,
        "w2": rng.standard_normal((8, 8 // group, 3, 3)) / 8,
        "w3": rng.standard_normal((4, 8)) / 3,
        "b3": np.zeros(4),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], "conv1", pads=[1] * 4),
        helper.make_node("Relu", ["c1"], ["r1"], "relu1"),
        helper.make_node(pool, ["r1"], ["p1"], "pool", kernel_shape=[3, 3], strides=[2, 2]),
        helper.make_node(
            "Conv", ["p1", "w2"], ["c2"], "conv2", group=group, strides=[stride, stride]
        ),
        helper.make_node("GlobalAveragePool", ["c2"], ["g"], "global"),
        helper.make_node("Flatten", ["g"], ["f"], "flatten"),
        helper.make_node("Gemm", ["f", "w3", "b3"], ["y"], "head", transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, list(sizes))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [sizes[0], 4])],
        [numpy_helper.from_array(v.astype(np.float32), name) for name, v in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())


def generate(reference: Reference, folder: Path, model: bytes) -> Artifacts:
    folder.mkdir()
    return reference.generate_artifacts(
        model, folder, requires_grad=["w1", "b1", "w2", "w3", "b3"], nominal=False
    )


def batch(size: int, side: int) -> dict[str, NDArray]:
    rng = np.random.default_rng(62)
    x = rng.standard_normal((size, 3, side, side)).astype(np.float32)
    return {"x": x, "labels": rng.integers(0, 4, size)}


@pytest.mark.parametrize(
    ("pool", "group", "stride"),
    [("MaxPool", 1, 1), ("MaxPool", 8, 2), ("MaxPool", 2, 2), ("AveragePool", 1, 2)],
)
def test_u021_conv_pool_gemm(
    reference: Reference, tmp_path: Path, pool: str, group: int, stride: int
) -> None:
    """U021: a small CNN on 32x32x3, three steps."""
    model = conv_net(pool, (6, 3, 32, 32), group, stride)
    artifacts, feed = generate(reference, tmp_path / "made", model), batch(6, 32)
    theirs, module = reference.load(artifacts), module_of(artifacts)
    theirs.set_learning_rate(0.02)
    for _ in range(STEPS):
        set_parameters(module, theirs.parameters())
        wanted = float(theirs.train_step(feed)[0])
        module.lazy_reset_grad()
        assert abs(float(module(**feed)) - wanted) <= LOSS * abs(wanted)
        assert max(gradient_errors(module, theirs.gradients()).values()) <= GRADIENT
        theirs.optimizer_step()
        theirs.lazy_reset_grad()


@pytest.mark.parametrize("pool", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("stride", [1, 2])
def test_open_sizes_give_what_fixed_ones_give(
    reference: Reference, tmp_path: Path, pool: str, stride: int
) -> None:
    """One training graph with symbols for batch, height and width, which fails in the reference."""
    open_model = conv_net(pool, ("N", 3, "H", "W"), stride=stride)
    module = module_of(generate(reference, tmp_path / "open", open_model))
    for size, side in ((2, 17), (5, 24)):
        fixed = conv_net(pool, (size, 3, side, side), stride=stride)
        artifacts, feed = generate(reference, tmp_path / f"fixed{side}", fixed), batch(size, side)
        theirs = reference.load(artifacts)
        wanted = float(theirs.train_step(feed)[0])
        module.lazy_reset_grad()
        assert abs(float(module(**feed)) - wanted) <= LOSS * abs(wanted)
        assert max(gradient_errors(module, theirs.gradients()).values()) <= GRADIENT
