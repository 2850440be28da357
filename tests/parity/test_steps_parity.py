"""The kernels' definition against the reference's own operators, one step at a time.

The other backends equal reference.py bit for bit (tests/kernels), so it stands for all of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from support.reference import Reference

from edge_train.kernels import adamw_scalars, select

STEPS = select("reference")
F32 = np.float32
ELEMENT = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64}
Arrays = list[np.ndarray]


def _model(op: str, inputs: dict[str, Any], outputs: list[str], **attributes: Any) -> bytes:
    """One operator; an output whose name starts with "flag" is a bool, the others sequences."""
    node = helper.make_node(op, list(inputs), outputs, domain="com.microsoft", **attributes)
    sequence = helper.make_tensor_sequence_value_info
    graph = helper.make_graph(
        [node],
        op,
        [
            sequence(name, TensorProto.FLOAT, None)
            if isinstance(value, list)
            else helper.make_tensor_value_info(name, ELEMENT[value.dtype.name], value.shape)
            for name, value in inputs.items()
        ],
        [
            helper.make_tensor_value_info(name, TensorProto.BOOL, [1])
            if name.startswith("flag")
            else sequence(name, TensorProto.FLOAT, None)
            for name in outputs
        ],
    )
    opsets = [helper.make_opsetid("", 15), helper.make_opsetid("com.microsoft", 1)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())


def _run(
    reference: Reference, op: str, inputs: dict[str, Any], outputs: list[str], **attributes: Any
) -> list[Any]:
    return reference.run_model(_model(op, inputs, outputs, **attributes), inputs)


def _sequence(rng: np.random.Generator) -> Arrays:
    return [rng.standard_normal(shape).astype(F32) for shape in ((500, 20), (20,), (3, 4, 5))]


def _flat(arrays: Arrays) -> np.ndarray:
    return np.concatenate([array.reshape(-1) for array in arrays])


def _excess(got: np.ndarray, expected: np.ndarray, ulps: int = 1) -> float:
    """The largest distance beyond so many units in the last place of the expected weight."""
    distance = np.abs(got.astype(np.float64) - expected)
    return float((distance - ulps * np.spacing(np.abs(expected))).max())


@pytest.mark.parametrize(
    ("mode", "correct_bias"), [(0, 1), (1, 1), (1, 0)], ids=["mode0", "mode1", "mode1-uncorrected"]
)
@pytest.mark.parametrize(
    ("betas", "eps", "decay", "lr"),
    [
        ((0.9, 0.999), 1e-6, 0.0, 0.02),
        ((0.9, 0.999), 1e-8, 0.01, 1e-3),
        ((0.3, 0.4), 1e-3, 0.3, 0.02),
    ],
)
def test_adamw(
    reference: Reference, rng: np.random.Generator, mode: int, correct_bias: int,
    betas: tuple[float, float], eps: float, decay: float, lr: float,
) -> None:  # fmt: skip
    weights = _sequence(rng)
    moments = [[np.zeros_like(w) for w in weights] for _ in range(2)]
    attributes = {
        "alpha": betas[0], "beta": betas[1], "epsilon": eps, "weight_decay": decay,
        "adam_mode": mode, "correct_bias": correct_bias,
    }  # fmt: skip
    exact = (float(F32(betas[0])), float(F32(betas[1])))
    for step in range(1, 11):
        gradients = _sequence(rng)
        mine = [_flat(each) for each in (weights, gradients, *moments)]
        inputs = {
            "lr": np.array([lr], F32), "step": np.array([step], np.int64),
            "w": weights, "g": gradients, "m": moments[0], "v": moments[1],
        }  # fmt: skip
        outputs = ["flag", "w_out", "m_out", "v_out"]
        _, weights, *moments = _run(reference, "AdamWOptimizer", inputs, outputs, **attributes)
        scalars = adamw_scalars(
            lr, exact, eps, decay, step, mode=mode, correct_bias=bool(correct_bias)
        )
        STEPS.adamw(*mine, scalars)
        np.testing.assert_array_equal(mine[2], _flat(moments[0]))
        np.testing.assert_array_equal(mine[3], _flat(moments[1]))
        # Equal but for the square root, which the reference approximates; decay rounds once more.
        assert _excess(mine[0], _flat(weights), ulps=2 if decay else 1) <= 5e-8


def test_the_adamw_comparison_sees_eps_in_the_wrong_place(
    reference: Reference, rng: np.random.Generator
) -> None:
    weights, gradients = _sequence(rng), _sequence(rng)
    zeros = [np.zeros_like(w) for w in weights]
    inputs = {
        "lr": np.array([0.02], F32), "step": np.array([1], np.int64),
        "w": weights, "g": gradients, "m": zeros, "v": zeros,
    }  # fmt: skip
    mine = [_flat(each) for each in (weights, gradients, zeros, zeros)]
    attributes = {"adam_mode": 1, "epsilon": 1e-6, "weight_decay": 0.0}
    _, theirs = _run(reference, "AdamWOptimizer", inputs, ["flag", "w_out"], **attributes)
    exact = (float(F32(0.9)), float(F32(0.999)))
    STEPS.adamw(*mine, adamw_scalars(0.02, exact, 1e-6, 0.0, 1, mode=0))
    assert _excess(mine[0], _flat(theirs), ulps=2) > 5e-8


def test_sgd(reference: Reference, rng: np.random.Generator) -> None:
    weights, gradients = _sequence(rng), _sequence(rng)
    inputs = {"lr": np.array([0.02], F32), "w": weights, "g": gradients}
    mine = [_flat(weights), _flat(gradients)]
    _, theirs = _run(reference, "SGDOptimizerV2", inputs, ["flag", "w_out"])
    STEPS.sgd(*mine, 0.02)
    np.testing.assert_array_equal(mine[0], _flat(theirs))


@pytest.mark.parametrize("max_norm", [1e-3, 1.0, 1e6])
def test_clip(reference: Reference, rng: np.random.Generator, max_norm: float) -> None:
    gradients = _sequence(rng)
    mine = _flat(gradients)
    options = {"max_norm": max_norm}
    (theirs,) = _run(reference, "InplaceClipGradNorm", {"g": gradients}, ["out"], **options)
    STEPS.clip(mine, max_norm)
    np.testing.assert_allclose(mine, _flat(theirs), rtol=1e-6, atol=0)


def test_accumulate(reference: Reference, rng: np.random.Generator) -> None:
    buffer, value = (rng.standard_normal(1000).astype(F32) for _ in range(2))
    graph = helper.make_graph(
        [
            helper.make_node(
                "InPlaceAccumulatorV2", ["buffer", "value"], ["flag", "sum"], domain="com.microsoft"
            )
        ],
        "accumulate",
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, [1000])
            for name in ("buffer", "value")
        ],
        [helper.make_tensor_value_info("sum", TensorProto.FLOAT, [1000])],
    )
    opsets = [helper.make_opsetid("", 15), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    (theirs,) = reference.run_model(model, {"buffer": buffer.copy(), "value": value})
    STEPS.accumulate(buffer, value)
    np.testing.assert_array_equal(buffer, theirs)
