"""An optimizer graph that was made for other parameters is refused; one that fits any is not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper
from support import optimizer_graphs as graphs
from support.optimizer_graphs import FakeModule
from support.zoo import ZOO

from edge_train.api import CheckpointState, Module, Optimizer
from edge_train.errors import ArtifactError
from edge_train.optimizer_spec import read_spec
from edge_train.training.loading import Wanted, load

LISTS = ["params", "gradients", *graphs.MOMENTS]
MLP = ZOO["mlp_CrossEntropyLoss"]
SHAPES = {"b1": (5,), "b2": (3,), "w1": (5, 4), "w2": (3, 5)}

Dims = Sequence[int | str | None]


def whole(kind: int = TensorProto.FLOAT, dims: Dims | None = None) -> bytes:
    """AdamW over whole sequences that declare their tensors."""
    model = ModelProto.FromString(graphs.adamw())
    for value in model.graph.input[2:]:
        value.CopyFrom(helper.make_tensor_sequence_value_info(value.name, kind, dims))
    return model.SerializeToString()


def apart(dims: Sequence[Dims | None]) -> bytes:
    """AdamW over sequences taken apart into tensors that are declared, where there are dims."""
    nodes: list[NodeProto] = []
    declared = []
    for at in range(len(dims)):
        index = helper.make_tensor("v", TensorProto.INT64, [], [at])
        nodes.append(helper.make_node("Constant", [], [f"at{at}"], value=index))
    for name in LISTS:
        parts = [f"{name}_{at}" for at in range(len(dims))]
        for at, part in enumerate(parts):
            nodes.append(helper.make_node("SequenceAt", [name, f"at{at}"], [part]))
            if dims[at] is not None:
                declared.append(helper.make_tensor_value_info(part, TensorProto.FLOAT, dims[at]))
        nodes.append(helper.make_node("SequenceConstruct", parts, [f"{name}_all"]))
    inputs = ["learning_rate", "step", *(f"{name}_all" for name in LISTS)]
    nodes.append(graphs.node("AdamWOptimizer", inputs, "flag"))
    model = ModelProto.FromString(graphs.build(nodes, LISTS))
    model.graph.value_info.extend(declared)
    return model.SerializeToString()


def module(stored: str = "checkpoint", trainable: list[str] | None = None) -> Module:
    state = CheckpointState.load_checkpoint(getattr(MLP, stored))
    return Module(MLP.training_model, state, trainable=trainable)


def steps(model: bytes, made: Module) -> bool:
    optimizer = Optimizer(model, made)
    made(**MLP.feed)
    before = made.state.parameters["w1"].data.copy()
    assert optimizer.step()
    return bool(np.any(made.state.parameters["w1"].data != before))


@pytest.mark.parametrize("name", sorted(ZOO))
def test_the_optimizer_of_any_artifacts_serves_every_model(name: str) -> None:
    """generate_artifacts writes nothing of the parameters into it, here and in the reference."""
    assert steps(ZOO[name].optimizer_model.read_bytes(), module())
    assert read_spec(ZOO[name].optimizer_model).declared == ()


@pytest.mark.parametrize(
    "model",
    [
        whole(),
        apart([None] * 4),
        apart(list(SHAPES.values())),
        apart([(3, 5), (5, 4), (3,), (5,)]),  # in any order
        apart([("n",), (None,), ("n", 4), (3, "k")]),
        apart([None, None, (5, 4), None]),
    ],
)
def test_a_graph_that_says_what_is_there_is_taken(model: bytes) -> None:
    assert steps(model, module())


def test_one_choice_of_parameters() -> None:
    assert steps(apart([(5, 4)]), module(trainable=["w1"]))
    assert steps(whole(dims=["n", "k"]), module(trainable=["w?"]))


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (apart([None] * 3), r"updates 3 tensors one by one.* 4 trainable parameters: 'w1', 'b"),
        (apart([None] * 5), r"updates 5 tensors one by one"),
        (apart([(5,), (3,), (5, 4), (7, 5)]), r"tensor 3 of 'params' as \(7, 5\), expected.*'b1'"),
        (apart([(5,), (5,), (5, 4), (3, 5)]), r"tensor 1 of 'gradients' as \(5\), expected"),
        (apart([None, None, (5, "k", 2), None]), r"tensor 2 of 'params' as \(5, k, 2\), exp"),
        (apart([None, None, None, ("n", 6)]), r"tensor 3 of 'second_order_moments' as \(n, 6\)"),
        (
            whole(dims=(5, 4)),
            r"every tensor of 'params' as \(5, 4\).*'b1' \(5,\), 'w2' \(3, 5\), 'b2",
        ),
        (whole(dims=("n", 4)), r"every tensor of 'params' as \(n, 4\)"),
    ],
)
@pytest.mark.parametrize("stored", ["checkpoint", "nominal_checkpoint"])
def test_other_parameters_are_refused(model: bytes, text: str, stored: str) -> None:
    """At once, a nominal state included, and with the way out."""
    made = module(stored)
    with pytest.raises(ArtifactError, match=f"(?s){text}.*optimizer graph of this model"):
        Optimizer(model, made)
    assert steps(whole(), module())


def test_a_choice_without_the_parameters_of_the_graph_is_refused() -> None:
    with pytest.raises(
        ArtifactError, match=r"(?s)tensor 0 .* as \(5, 4\).*trainable=\[\.\.\.\]: of"
    ):
        Optimizer(apart([(5, 4)]), module(trainable=["w2"]))


@pytest.mark.parametrize("kind", [TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16])
def test_tensors_of_another_type_are_refused(kind: int) -> None:
    """Where onnxruntime-training fails at the first step."""
    name = TensorProto.DataType.Name(kind).lower().replace("double", "float64")
    with pytest.raises(ArtifactError, match=rf"takes {name} tensors as its input 'params', exp"):
        Optimizer(whole(kind), FakeModule())


def test_a_tensor_in_place_of_a_sequence_is_judged_by_its_type() -> None:
    model = ModelProto.FromString(graphs.adamw())
    value = helper.make_tensor_value_info("params", TensorProto.DOUBLE, [3])
    model.graph.input[2].CopyFrom(value)
    with pytest.raises(ArtifactError, match="takes float64 tensors as its input 'params'"):
        read_spec(model.SerializeToString())


def test_a_folder_with_the_optimizer_of_another_model_is_refused(tmp_path: Path) -> None:
    """What the Trainer and `edge-train train` load."""
    for name in ("training_model.onnx", "eval_model.onnx", "checkpoint"):
        source = getattr(MLP, name.partition(".")[0])
        (tmp_path / name).write_bytes(source.read_bytes())
    (tmp_path / "optimizer_model.onnx").write_bytes(apart([(9, 9)]))
    with pytest.raises(ArtifactError, match=r"tensor 0 of 'params' as \(9, 9\)"):
        load(Wanted(tmp_path))
    (tmp_path / "optimizer_model.onnx").write_bytes(whole())
    assert load(Wanted(tmp_path)).optimizer.step_count == 0


def test_what_a_graph_declares_is_told_as_data() -> None:
    told = asdict(read_spec(apart([(5,), None])))["declared"]
    assert {"source": "params", "place": 0, "dims": (5,)} in told
    assert len(told) == 4
