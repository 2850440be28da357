"""Slopes by central differences, and what computes them; graphs with floats of another width."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pytest

from edge_train import dtypes
from edge_train.graph import differences, ir
from edge_train.graph.differences import Evaluator
from edge_train.graph.precision import with_floats

X = np.array([[0.3, -1.2, 2.0]], np.float32)


def model(nodes: Iterable[ir.Node], *constants: ir.Tensor, rank: int = 2) -> ir.Model:
    return ir.Model(
        ir.Graph(
            "net",
            list(nodes),
            [ir.Value("x", dtypes.FLOAT, (None,) * rank)],
            [ir.Value("y", dtypes.FLOAT, None)],
            {tensor.name: tensor for tensor in constants},
        ),
        10,
        [("", 21), (ir.MICROSOFT, 1)],
    )


def unary(op_type: str) -> ir.Model:
    return model([ir.make_node(op_type, ["x"], ["y"], op_type)])


@pytest.mark.parametrize(
    ("op_type", "slope", "backend"),
    [
        ("Exp", np.exp(X[0]), "onnxruntime in double"),
        (
            "Erf",
            2 / np.sqrt(np.pi) * np.exp(-(X[0].astype(float) ** 2)),
            "onnx.reference in double",
        ),
        ("Shrink", np.array([0, 1, 1]), "onnx.reference in double"),
        ("Softsign", 1 / (1 + np.abs(X[0].astype(float))) ** 2, "onnx.reference in double"),
    ],
)
def test_slopes(op_type: str, slope: np.ndarray, backend: str) -> None:
    evaluator = Evaluator(unary(op_type))
    ways = np.eye(3)[:, None]
    found = [evaluator.slope("y", {"x": X}, "x", way, 1e-5) for way in ways]
    np.testing.assert_allclose(found, slope, rtol=1e-6)
    assert evaluator.exact
    assert evaluator.backend == backend


@pytest.mark.parametrize(
    ("nodes", "rank"),
    [
        ([ir.make_node("GlobalMaxPool", ["x"], ["y"], "GlobalMaxPool")], 3),
        (
            [
                ir.make_node(
                    *("Resize", ["x", "", "scales"], ["y"], "Resize"),
                    mode="nearest",
                    nearest_mode="floor",
                )
            ],
            4,
        ),
    ],
    ids=["GlobalMaxPool over one axis", "Resize to nearest, floor"],
)
def test_a_reference_that_differs_from_the_runtime_is_not_used(
    nodes: list[ir.Node], rank: int
) -> None:
    """onnx.reference pools the channels too, and rounds where it should go down."""
    scales = ir.Tensor.of("scales", np.array([1, 1, 0.6, 0.5], np.float32))
    x = np.random.default_rng(0).standard_normal((2, 2, 5, 4)[:rank]).astype(np.float32)
    case = model(nodes, scales, rank=rank)
    evaluator = Evaluator(case)
    y = evaluator({"x": x})["y"]
    assert evaluator.backend == "onnxruntime in float32"
    way = np.ones_like(x)
    # both ops choose among values: shifting them all by one shifts every output by one
    assert evaluator.slope("y", {"x": x}, "x", way, 1e-2) == pytest.approx(y.size, rel=1e-4)


def test_other_domains_run_in_float32() -> None:
    """Nothing computes a custom or contrib op that is not lowered in double."""
    node = ir.make_node("NhwcMaxPool", ["x"], ["y"], "pool", ir.MICROSOFT, kernel_shape=[1, 1])
    evaluator = Evaluator(model([node], rank=4))
    with pytest.raises(Exception, match=r"pool|NhwcMaxPool"):
        evaluator({"x": np.zeros((1, 1, 1, 1), np.float32)})
    assert evaluator.backend == "onnxruntime in float32"
    assert not evaluator.exact


def test_a_kernel_that_fails_when_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some load in double and are refused at the first run (LSTM)."""

    def failing(source: ir.Model, names: Sequence[str]) -> Callable[..., Any]:
        def run(fed: dict[str, np.ndarray]) -> list[np.ndarray]:
            raise RuntimeError("does not support double yet")

        return run

    monkeypatch.setattr(differences, "_by_onnxruntime", failing)
    evaluator = Evaluator(unary("Exp"))
    np.testing.assert_array_equal(evaluator({"x": X})["y"], np.exp(X.astype(np.float64)))
    assert evaluator.backend == "onnx.reference in double"


def test_floats_of_another_width() -> None:
    half = ir.Tensor.of("half", np.array([0.5, 2], np.float16))
    brain = ir.Tensor("brain", dtypes.BFLOAT16, (2,), b"\x80\x3f\x00\xc0")  # 1, -2
    ints = ir.Tensor.of("ints", np.array([1, 2]))
    nodes = [
        ir.make_node("Constant", [], ["c"], value_floats=[1.0, 0.1]),
        ir.make_node("Cast", ["ints"], ["f"], to=dtypes.FLOAT),
        ir.make_node("Cast", ["x"], ["i"], to=dtypes.INT64),
        ir.make_node("ConstantOfShape", ["ints"], ["z"]),
    ]
    wide = with_floats(model(nodes, half, brain, ints), dtypes.DOUBLE).graph
    values = {name: tensor.array() for name, tensor in wide.initializers.items()}
    assert {name: value.dtype for name, value in values.items()} == {
        "half": np.float64,
        "brain": np.float64,
        "ints": np.int64,
    }
    assert values["brain"].tolist() == [1, -2]
    constant, to_float, to_int, zeros = wide.nodes
    assert constant.attr("value").array().tolist() == [1.0, pytest.approx(0.1)]
    assert to_float.attr("to") == dtypes.DOUBLE
    assert to_int.attr("to") == dtypes.INT64
    assert zeros.attr("value").data_type == dtypes.DOUBLE
    assert wide.inputs[0].elem_type == wide.outputs[0].elem_type == dtypes.DOUBLE
