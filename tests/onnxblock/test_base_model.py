"""What a base model tells its blocks, and what blocks leave in it: names, types, outputs."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from support.generated import mlp

import edge_train.onnxblock as onnxblock
from edge_train.onnxblock import _graph_utils, model_accessor

blocks = onnxblock.blocks


class Chain(onnxblock.ForwardBlock):
    """The given blocks one after the other."""

    def __init__(self, *parts: Any) -> None:
        super().__init__()
        self.parts = parts

    def build(self, name: str) -> Any:
        for part in self.parts:
            name = part(name)
        return name


def _made(*parts: Any, base: onnx.ModelProto | None = None, name: str = "x") -> onnx.ModelProto:
    block = Chain(*parts)
    with onnxblock.base(_model(TensorProto.FLOAT) if base is None else base):
        block(name)
    return block.to_model_proto()


def _model(kind: int) -> onnx.ModelProto:
    x = helper.make_tensor_value_info("x", kind, ["N"])
    y = helper.make_tensor_value_info("y", kind, ["N"])
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _run(model: onnx.ModelProto, x: np.ndarray) -> Any:
    return onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]


@pytest.mark.parametrize("kind", [np.int32, np.int64, np.float64, np.float32])
def test_an_exponent_is_never_cut_to_an_integer(kind: type) -> None:
    x = np.array([4, 9, 16], kind)
    made = _made(blocks.Pow(0.5), base=_model(helper.np_dtype_to_tensor_dtype(np.dtype(kind))))
    got = _run(made, x)
    assert got.dtype == kind
    assert got.tolist() == [2, 3, 4]


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0.5, 2.5, [1, 1, 2, 2]), (-1.5, None, [-1, 1, 2, 7]), (float("-inf"), 1e30, [-3, 1, 2, 7])],
)
def test_integers_are_clipped_to_those_within_the_bounds(
    low: float | None, high: float | None, expected: list[int]
) -> None:
    for kind in (np.int32, np.int64):
        x = np.array([-3, 1, 2, 7], kind)
        base = _model(helper.np_dtype_to_tensor_dtype(np.dtype(kind)))
        got = _run(_made(blocks.Clip(low, high), base=base), x)
        assert got.tolist() == expected
        assert got.dtype == kind


def test_constants_of_bfloat16() -> None:
    made = _made(blocks.Clip(0.5), blocks.Pow(1.5), base=_model(TensorProto.BFLOAT16))
    onnx.checker.check_model(made, full_check=True)
    assert {tensor.data_type for tensor in made.graph.initializer} == {TensorProto.BFLOAT16}


def test_a_finished_model_is_not_rewritten_by_later_blocks() -> None:
    first, second = Chain(blocks.Abs()), Chain(blocks.Neg())
    with onnxblock.base(_model(TensorProto.FLOAT)) as handle:
        name = first("y")
        model = first.to_model_proto()
        before = model.SerializeToString(deterministic=True)
        second(name)
        assert first.to_model_proto() is model
        assert len(handle.model.graph.node) == len(model.graph.node) + 1
    assert model.SerializeToString(deterministic=True) == before
    assert [output.name for output in model.graph.output] == [name]


def _dims(value: onnx.ValueInfoProto) -> list[str | int]:
    return [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]


def test_inner_tensors_are_declared() -> None:
    """Large weights play no part, so that models above 2 GiB go through."""
    wide = helper.make_tensor("wide", TensorProto.FLOAT, [1, 5000], [0.0] * 5000)
    base = mlp()
    base.graph.initializer.append(wide)
    made = _made(lambda name: blocks.Abs()(blocks.Add()(name, "wide")), base=base, name="b1")
    infos = {value.name: _dims(value) for value in made.graph.value_info}
    assert "h" in infos
    assert [1, 5000] not in infos.values()  # does not fit b1 [5]: nothing is made up
    made = _made(lambda _: blocks.Abs()(blocks.Neg()("wide")), base=base)
    assert [1, 5000] in [_dims(value) for value in made.graph.value_info]
    assert made.graph.initializer[-1] == wide
    onnx.checker.check_model(made, full_check=True)


def test_shapes_can_be_inferred_at_any_time() -> None:
    block = blocks.Abs()
    with onnxblock.base(_model(TensorProto.FLOAT)) as handle:
        name = block("y")
        inferred = block.infer_shapes_on_base()
        assert {value.name: _dims(value) for value in inferred.graph.value_info}[name] == ["N"]
        assert not handle.model.graph.value_info
        assert inferred.graph.node == handle.model.graph.node
    with pytest.raises(RuntimeError, match="no base model"):
        block.infer_shapes_on_base()


def test_a_sequence_can_be_an_output() -> None:
    made = _made(lambda name: blocks.SequenceConstruct()(name, blocks.Neg()(name)))
    onnx.checker.check_model(made, full_check=True)
    assert [array.tolist() for array in _run(made, np.ones(2, np.float32))] == [[1, 1], [-1, -1]]


class Foreign(onnxblock.Block):
    def __init__(self, *declared: onnx.ValueInfoProto) -> None:
        super().__init__()
        self.declared = declared

    def build(self, name: str) -> str:
        self.base.graph.node.append(helper.make_node("Own", [name], ["own"], domain="own.ops"))
        self.base.graph.value_info.extend(self.declared)
        return "own"


def test_an_output_of_unknown_type_is_refused() -> None:
    with pytest.raises(LookupError, match="nothing tells the type of 'own'"):
        _made(Foreign())
    declared = helper.make_tensor_value_info("own", TensorProto.INT64, ["N"])
    assert list(_made(Foreign(declared)).graph.output) == [declared]


def test_names_can_be_made_outside_of_a_base(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_accessor, "_made_outside", set())
    monkeypatch.setattr(model_accessor, "_outside_count", itertools.count(1))
    names = [_graph_utils.generate_graph_name("abs_output") for _ in range(2)]
    assert len(set(names)) == 2

    def use(name: str) -> str:
        node = helper.make_node("Neg", [name], [names[0]])
        model_accessor.current().model.graph.node.append(node)
        return names[0]

    made = _made(*[blocks.Abs()] * 3, use)
    outputs = [name for node in made.graph.node for name in node.output]
    assert len(set(outputs)) == len(outputs) == 5
    with pytest.raises(RuntimeError, match=r"has a tensor .* already"):
        _made(use, base=made)


def test_errors_are_those_that_scripts_catch() -> None:
    for kind in (ValueError, RuntimeError):
        with pytest.raises(kind, match="has the reductions"):
            onnxblock.loss.MSELoss(reduction="average")
    with onnxblock.base(_model(TensorProto.FLOAT)) as handle:
        assert not handle.has_path
        with pytest.raises(RuntimeError, match="has no path"):
            handle.path  # noqa: B018
    with onnxblock.base(_model(TensorProto.FLOAT), "m.onnx") as handle:
        assert handle.path == "m.onnx"
