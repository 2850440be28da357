"""Blocks and custom losses in the style in which they are written for onnxruntime.training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from support.generated import generate, mlp
from support.offsets import offset_model
from support.training import module_of, session_of

import edge_train.onnxblock as onnxblock
from edge_train import artifacts
from edge_train.api import CheckpointState, Module, Optimizer
from edge_train.checkpoint.files import open_checkpoint
from edge_train.errors import ArtifactError

X = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)


# --- custom losses -------------------------------------------------------------------------------


class WeightedAverageLoss(onnxblock.Block):
    """Two targets, weights as constants; __init__ of the base is not called."""

    def __init__(self):
        self._loss1 = onnxblock.loss.MSELoss()
        self._loss2 = onnxblock.loss.MSELoss()
        self._w1 = onnxblock.blocks.Constant(0.4)
        self._w2 = onnxblock.blocks.Constant(0.6)
        self._add = onnxblock.blocks.Add()
        self._mul = onnxblock.blocks.Mul()

    def build(self, loss_input_name1, loss_input_name2):
        return self._add(
            self._mul(self._w1(), self._loss1(loss_input_name1, target_name="target1")),
            self._mul(self._w2(), self._loss2(loss_input_name2, target_name="target2")),
        )


class SmoothL1Loss(onnxblock.Block):
    """Nodes made by hand on self.base, names from _graph_utils."""

    def build(self, prediction: str, target: str = "target"):
        target = onnxblock.blocks.InputLike(prediction)(target)
        distance = onnxblock.blocks.Abs()(onnxblock.blocks.Sub()(prediction, target))
        half = onnxblock.blocks.Constant(0.5)()
        name = onnxblock._graph_utils.generate_graph_name("clipped")
        self.base.graph.node.append(
            helper.make_node("Min", [distance, onnxblock.blocks.Constant(1.0)()], [name], name)
        )
        inner = onnxblock.blocks.Sub()(distance, onnxblock.blocks.Mul()(name, half))
        return onnxblock.blocks.ReduceMean(keepdims=False)(onnxblock.blocks.Mul()(name, inner))


class RegularizedLoss(onnxblock.Block):
    """Reads a weight of the model by its name."""

    def __init__(self):
        super().__init__()
        self.bce = onnxblock.loss.BCEWithLogitsLoss()
        self.square = onnxblock.blocks.Pow(2.0)
        self.sum = onnxblock.blocks.ReduceSum(keepdims=False)

    def build(self, logits):
        penalty = onnxblock.blocks.Mul()(
            onnxblock.blocks.Constant(0.01)(), self.sum(self.square("w1"))
        )
        return onnxblock.blocks.Add()(self.bce(logits), penalty)


def test_a_weighted_average_of_two_outputs(tmp_path: Path) -> None:
    model = offset_model(X)
    model.graph.node.append(helper.make_node("Neg", ["y"], ["y2"], "neg"))
    model.graph.output.append(helper.make_tensor_value_info("y2", 1, [2, 3]))
    module = module_of(generate(model, tmp_path, loss=WeightedAverageLoss()))
    ones = np.ones_like(X)
    value = np.ravel(module(np.zeros_like(X), ones, 2 * ones))[0]
    expected = 0.4 * np.mean((X - 1) ** 2) + 0.6 * np.mean((-X - 2) ** 2)
    assert value == pytest.approx(expected, rel=1e-6)
    gradient = 0.4 * 2 * (X - 1) / 6 + 0.6 * 2 * (X + 2) / 6
    np.testing.assert_allclose(module.state.parameters["p"].grad, gradient, rtol=1e-5)


def test_nodes_made_by_hand(tmp_path: Path) -> None:
    module = module_of(generate(offset_model(X), tmp_path, loss=SmoothL1Loss()))
    module(np.zeros_like(X), np.zeros_like(X))
    np.testing.assert_allclose(module.state.parameters["p"].grad, np.clip(X, -1, 1) / 6, rtol=1e-5)


def test_a_penalty_on_a_weight(tmp_path: Path) -> None:
    module = module_of(generate(mlp(), tmp_path, loss=RegularizedLoss()))
    w1 = np.array(module.state.parameters["w1"].data)
    module(np.zeros((2, 4), np.float32), np.full((2, 3), 0.5, np.float32))
    np.testing.assert_allclose(module.state.parameters["w1"].grad, 0.02 * w1, rtol=1e-5)


class BoxLoss(onnxblock.Block):
    """atan(1 - IoU) of boxes (x1, y1, x2, y2), of the two worst: Min, Max, Where, Gather, TopK."""

    def node(self, op: str, *inputs: str, **attributes: Any) -> str:
        output = onnxblock._graph_utils.generate_graph_name(op)
        node = helper.make_node(op, list(inputs), [output], f"{output}_node", **attributes)
        self.base.graph.node.append(node)
        return output

    def constant(self, *values: int) -> str:
        name = onnxblock._graph_utils.generate_graph_name("index")
        self.base.graph.initializer.append(numpy_helper.from_array(np.array(values), name))
        return name

    def corner(self, boxes: str, *which: int) -> str:
        return self.node("Gather", boxes, self.constant(*which), axis=1)

    def area(self, low: str, high: str) -> str:
        size = self.node("Relu", self.node("Sub", high, low))
        return self.node("ReduceProd", size, axes=[1], keepdims=0)

    def build(self, boxes: str) -> str:
        target = onnxblock.blocks.InputLike(boxes)("target")
        lows, highs = ([self.corner(b, *at) for b in (boxes, target)] for at in ((0, 1), (2, 3)))
        common = self.area(self.node("Max", *lows), self.node("Min", *highs))
        areas = [self.area(low, high) for low, high in zip(lows, highs, strict=True)]
        iou = self.node("Div", common, self.node("Sub", self.node("Add", *areas), common))
        one = onnxblock.blocks.Constant(1.0)()
        missed = self.node("Atan", self.node("Sub", one, iou))
        worst = onnxblock._graph_utils.generate_graph_name("worst")
        places = onnxblock._graph_utils.generate_graph_name("places")
        self.base.graph.node.append(
            helper.make_node("TopK", [missed, self.constant(2)], [worst, places], "topk")
        )
        half = onnxblock.blocks.Constant(0.5)()
        kept = self.node("Where", self.node("Greater", worst, half), worst, half)
        return str(onnxblock.blocks.ReduceMean(keepdims=False)(kept))


def test_u034_a_detection_loss_of_many_small_ops(tmp_path: Path) -> None:
    """U034: what the reference cannot (ReduceProd, Atan) beside what it can."""
    target = np.array([[0, 0, 2, 2], [1, 1, 3, 3], [0, 0, 1, 4]], np.float32)
    boxes = target + np.array([0.1, -0.2, 0.3, -0.4], np.float32) * np.array([[1], [3], [2]], "f")
    module = module_of(generate(offset_model(boxes), tmp_path, loss=BoxLoss()))
    feed = {"z": np.zeros_like(boxes), "target": target}
    module(**feed)
    gradient = np.array(module.state.parameters["p"].grad)
    direction = np.random.default_rng(0).standard_normal(boxes.shape).astype(np.float32)
    ends = [float(module.eval()(z=step * direction, target=target)) for step in (1e-2, -1e-2)]
    assert np.sum(gradient * direction) == pytest.approx((ends[0] - ends[1]) / 2e-2, rel=1e-3)
    assert np.count_nonzero(np.any(gradient != 0, axis=1)) == 2


# --- TrainingBlock and ForwardBlock --------------------------------------------------------------


class MLPTraining(onnxblock.TrainingBlock):
    def __init__(self):
        super().__init__()
        self.loss = onnxblock.loss.CrossEntropyLoss()

    def build(self, output_name):
        return self.loss(output_name)


def test_artifacts_by_hand(tmp_path: Path) -> None:
    """The sequence of calls that generate_artifacts stands for."""
    model = mlp()
    block = MLPTraining()
    for name in ("w1", "w2", "b1"):
        block.requires_grad(name)
    block.requires_grad("b1", False)
    with onnxblock.base(model) as handle:
        loss = block("y")
        training, evaluation = block.to_model_proto()
        trainable, frozen = block.parameters()
        assert handle.model.graph.output[0].name == loss
    assert [p.name for p in trainable] == ["w1", "w2"]
    assert [p.name for p in frozen] == ["b1", "b2"]
    optimizer = onnxblock.optim.AdamW(weight_decay=0.1)
    with onnxblock.empty_base() as handle:
        optimizer((trainable, frozen))
        made = optimizer.to_model_proto()
        assert handle.model == made
    onnx.checker.check_model(evaluation, full_check=True)
    for name, proto in (("training", training), ("eval", evaluation), ("optimizer", made)):
        onnx.save(proto, tmp_path / f"{name}_model.onnx")
    onnxblock.save_checkpoint((trainable, frozen), tmp_path / "checkpoint")
    artifacts.generate_artifacts(
        model,
        requires_grad=["w1", "w2"],
        loss=artifacts.LossType.CrossEntropyLoss,
        artifact_directory=tmp_path / "at_once",
    )
    at_once = (tmp_path / "at_once" / "checkpoint").read_bytes()
    assert (tmp_path / "checkpoint").read_bytes() == at_once
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(tmp_path / "training_model.onnx", state, tmp_path / "eval_model.onnx")
    update = Optimizer(tmp_path / "optimizer_model.onnx", module)
    first = module(np.ones((2, 4), np.float32), np.array([0, 2]))
    update.step()
    module.lazy_reset_grad()
    assert module(np.ones((2, 4), np.float32), np.array([0, 2])) < first


def test_training_from_nothing() -> None:
    """An empty base is at an opset that can be differentiated, however new the package onnx is."""

    class Regression(onnxblock.TrainingBlock):
        def build(self, x: str) -> str:
            return str(onnxblock.loss.MSELoss()(onnxblock.blocks.Linear(4, 3)(x)))

    block = Regression()
    with onnxblock.empty_base() as handle:
        value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["N", 4])
        handle.model.graph.input.append(value)
        block.requires_grad("*")
        block("x")
    trained, _ = block.parameters()
    assert [tuple(tensor.dims) for tensor in trained] == [(4, 3), (3,)]


def test_before_the_block_is_called() -> None:
    block = MLPTraining()
    for ask in (block.parameters, block.to_model_proto, onnxblock.optim.SGD().to_model_proto):
        with pytest.raises(RuntimeError, match="call the block first"):
            ask()
    with pytest.raises(RuntimeError, match="no base model"):
        block("y")


def test_one_base_at_a_time() -> None:
    with (
        onnxblock.base(mlp()),
        pytest.raises(RuntimeError, match="being built already"),
        onnxblock.empty_base(),
    ):
        pass
    with pytest.raises(RuntimeError), onnxblock.base(None):  # type: ignore[arg-type]
        pass
    with onnxblock.empty_base(13) as handle:
        assert {item.domain: item.version for item in handle.model.opset_import}[""] == 13
    with (
        pytest.raises(RuntimeError, match="does not exist"),
        onnxblock.custom_op_library("no/such.so"),
    ):
        pass


def test_a_base_is_a_copy() -> None:
    model = mlp()
    before = model.SerializeToString(deterministic=True)
    with onnxblock.base(model):
        onnxblock.loss.MSELoss()("y")
    assert model.SerializeToString(deterministic=True) == before


def test_names_do_not_clash_with_the_models() -> None:
    """A model that a block made before has such names already."""
    with onnxblock.base(mlp()) as handle:
        onnxblock.loss.MSELoss()("y")
        once = handle.model
    with onnxblock.base(once) as handle:
        onnxblock.loss.L1Loss()("y")
        outputs = [name for node in handle.model.graph.node for name in node.output]
    assert len(set(outputs)) == len(outputs)


class Forward(onnxblock.ForwardBlock):
    def build(self, name):
        blocks = onnxblock.blocks
        return blocks.Clip(-1.0, 1.0)(blocks.Cast(onnx.TensorProto.FLOAT)(name))


@pytest.mark.parametrize(
    ("block", "inputs", "expected"),
    [
        (lambda: onnxblock.blocks.Add(), 2, X + X),
        (lambda: onnxblock.blocks.Sub(), 2, X - X),
        (lambda: onnxblock.blocks.Mul(), 2, X * X),
        (lambda: onnxblock.blocks.Div(), 2, X / X),
        (lambda: onnxblock.blocks.Pow(3.0), 1, X**3),
        (lambda: onnxblock.blocks.Abs(), 1, np.abs(X)),
        (lambda: onnxblock.blocks.Neg(), 1, -X),
        (lambda: onnxblock.blocks.Sigmoid(), 1, 1 / (1 + np.exp(-X))),
        (lambda: onnxblock.blocks.Clip(0.0), 1, np.maximum(X, 0)),
        (lambda: onnxblock.blocks.Clip(None, 0.5), 1, np.minimum(X, 0.5)),
        (lambda: onnxblock.blocks.ReduceMean(), 1, X.mean(keepdims=True)),
        (lambda: onnxblock.blocks.ReduceSum(keepdims=False), 1, X.sum()),
        (lambda: onnxblock.blocks.Cast(onnx.TensorProto.INT64), 1, X.astype(np.int64)),
        (lambda: Forward(), 1, np.clip(X, -1, 1)),
    ],
)
def test_elementary_blocks(block: Any, inputs: int, expected: np.ndarray) -> None:
    import onnxruntime

    class Once(onnxblock.ForwardBlock):
        def build(self, *names):
            return block()(*names)

    forward = Once()
    with onnxblock.base(offset_model(X)):
        output = forward(*["y"] * inputs)
    made = forward.to_model_proto()
    onnx.checker.check_model(made, full_check=True)
    session = onnxruntime.InferenceSession(made.SerializeToString())
    (got,) = session.run([output], {"z": np.zeros_like(X)})
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-6)
    assert got.shape == np.shape(expected)


def test_a_layer_of_ones_own_is_trained(tmp_path: Path) -> None:
    class Head(onnxblock.Block):
        def build(self, hidden):
            return onnxblock.loss.CrossEntropyLoss()(onnxblock.blocks.Linear(3, 4)(hidden))

    generate(mlp(), tmp_path, loss=Head())
    with open_checkpoint(tmp_path / "checkpoint") as state:
        trained = [tensor.name for tensor in state.trainable]
    assert trained[:4] == ["w1", "b1", "w2", "b2"]
    assert [name.split("::")[1] for name in trained[4:]] == ["linear.weight", "linear.bias"]


def test_labels_by_a_table(tmp_path: Path) -> None:
    class Encoded(onnxblock.Block):
        def build(self, scores):
            raw = helper.make_tensor_value_info("raw", onnx.TensorProto.INT64, ["N"])
            self.base.graph.input.append(raw)
            labels = onnxblock.blocks.LabelEncoder(
                keys_int64s=[10, 20, 30], values_int64s=[0, 1, 2], default_int64=0
            )("raw")
            return onnxblock.loss.CrossEntropyLoss()(scores, labels)

    module, _ = session_of(generate(mlp(), tmp_path, loss=Encoded()))
    plain, _ = session_of(generate(mlp(), tmp_path / "plain", loss="CrossEntropyLoss"))
    x = np.ones((3, 4), np.float32)
    assert module(x, np.array([30, 10, 20])) == plain(x, np.array([2, 0, 1]))


def test_what_a_block_cannot_find() -> None:
    with onnxblock.base(mlp()):
        with pytest.raises(LookupError, match="'nowhere'"):
            onnxblock.blocks.InputLike("nowhere")("target")
        assert onnxblock.blocks.InputLike("h")("like_h") == "like_h"

    class Nowhere(onnxblock.ForwardBlock):
        def build(self):
            return "nowhere"

    with onnxblock.base(mlp()), pytest.raises(LookupError, match="'nowhere'"):
        Nowhere()()


def test_a_loss_that_fails_is_part_of_the_report(tmp_path: Path) -> None:
    class Broken(onnxblock.Block):
        def build(self, scores):
            return onnxblock.blocks.InputLike("nowhere")(scores)

    class Silent(onnxblock.Block):
        def build(self, scores):
            return None

    class Dangling(onnxblock.Block):
        def build(self, scores):
            return onnxblock.blocks.ReduceSum(keepdims=False)(
                onnxblock.blocks.Mul()(scores, "nothing")
            )

    for block, said in (
        (Broken(), "'nowhere'"),
        (Silent(), "gave None"),
        (Dangling(), "reads 'nothing', which nothing makes"),
    ):
        with pytest.raises(ArtifactError, match=said) as caught:
            generate(mlp(), tmp_path, loss=block, requires_grad=["w1", "w9"])
        assert "'w9'" in str(caught.value)
        assert "expected one number" not in str(caught.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"weight_decay": float("nan")},
        {"weight_decay": -0.1},
        {"eps": float("inf")},
        {"betas": (0.9, 1.0)},
        {"betas": (float("nan"), 0.9)},
    ],
)
def test_settings_that_no_step_can_be_made_with_are_refused(settings: dict[str, Any]) -> None:
    (name,) = settings
    with pytest.raises(ValueError, match=name):
        onnxblock.optim.AdamW(**settings)
