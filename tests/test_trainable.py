"""Module(trainable=...): a subset of the artifacts' trainable parameters, chosen at load."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
from support.training import module_of
from support.zoo import DETERMINISTIC, ZOO, Case

from edge_train.api import CheckpointState, Module, Optimizer
from edge_train.errors import ArtifactError, CheckpointError
from edge_train.graph import onnx_codec, subset
from edge_train.graph.roles import Roles

MLP = ZOO["mlp_CrossEntropyLoss"]
BERT = ZOO["transformer_LNop_3out_opset17"]
HEAD = ZOO["frozen_backbone_only_head"]


def gradients(module: Module) -> dict[str, np.ndarray]:
    return {n: p.grad.copy() for n, p in module.state.parameters if p.grad is not None}


def trained(state: CheckpointState) -> list[str]:
    return [name for name, parameter in state.parameters if parameter.requires_grad]


def steps(module: Module, case: Case, count: int) -> Optimizer:
    optimizer = Optimizer(case.optimizer_model, module)
    for _ in range(count):
        module(**case.feed)
        optimizer.step()
        module.lazy_reset_grad()
    return optimizer


@pytest.mark.slow
@pytest.mark.parametrize("name", ["conv_bn_maxpool_gap", "gru_with_h0", BERT.name])
def test_each_parameter_alone_gets_the_gradient_it_has_among_all(name: str) -> None:
    case = ZOO[name]
    module = module_of(case)
    loss = module(**case.feed)
    for parameter, expected in gradients(module).items():
        alone = module_of(case, trainable=[parameter])
        np.testing.assert_allclose(alone(**case.feed), loss, rtol=1e-6)
        assert list(gradients(alone)) == [parameter]
        scale = max(float(np.linalg.norm(expected)), 1e-2)
        assert np.linalg.norm(gradients(alone)[parameter] - expected) <= 2e-6 * scale


@pytest.mark.slow
@pytest.mark.parametrize("name", DETERMINISTIC)
def test_every_other_parameter_of_every_model(name: str) -> None:
    case = ZOO[name]
    module = module_of(case)
    module(**case.feed)
    every = gradients(module)
    chosen = list(every)[::2]
    part = module_of(case, trainable=chosen)
    part(**case.feed)
    assert sorted(gradients(part)) == sorted(chosen)
    for parameter, got in gradients(part).items():
        scale = max(float(np.linalg.norm(every[parameter])), 1e-2)
        assert np.linalg.norm(got - every[parameter]) <= 2e-6 * scale


def test_everybody_agrees_on_the_choice(tmp_path: Path) -> None:
    module = module_of(MLP, trainable=["b*"])
    before = {name: parameter.data.copy() for name, parameter in module.state.parameters}
    optimizer = steps(module, MLP, 3)
    state = module.state
    assert module.arena.names == ("b1", "b2")
    assert trained(state) == ["b1", "b2"]
    assert state.parameters["w1"].grad is None
    assert module.get_parameters_size(trainable_only=True) == module.arena.size
    assert [slot.name for slot in module.parameter_layout(True)] == ["b1", "b2"]
    assert len(module.parameter_layout()) == 4
    assert sorted(optimizer.group.moments) == ["b1", "b2"]
    moved = [n for n, p in state.parameters if not np.array_equal(p.data, before[n])]
    assert moved == ["b1", "b2"]
    path = tmp_path / "inference.onnx"
    module.eval().export_model_for_inferencing(path, ["y"])
    tensors = onnx_codec.load(path).graph.initializers
    for name, parameter in state.parameters:
        np.testing.assert_array_equal(tensors[name].array(), parameter.data)


def test_the_moves_are_those_of_the_full_training_with_the_rest_held() -> None:
    part, whole = module_of(MLP, trainable=["*2"]), module_of(MLP)
    kept = {name: parameter.data.copy() for name, parameter in whole.state.parameters}
    steps(part, MLP, 3)
    optimizer = Optimizer(MLP.optimizer_model, whole)
    for _ in range(3):
        whole(**MLP.feed)
        optimizer.step()
        whole.lazy_reset_grad()
        for name in ("w1", "b1"):
            whole.state.parameters[name] = kept[name]
    for name, parameter in part.state.parameters:
        np.testing.assert_allclose(parameter.data, whole.state.parameters[name].data, rtol=1e-6)


def test_a_checkpoint_remembers_and_goes_on(tmp_path: Path) -> None:
    straight = module_of(MLP, trainable=["w2", "b2"])
    steps(straight, MLP, 5)
    module = module_of(MLP, trainable=["w2", "b2"])
    steps(module, MLP, 2)
    CheckpointState.save_checkpoint(module.state, tmp_path / "checkpoint")
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    assert trained(state) == ["b2", "w2"]
    assert trained(copy.deepcopy(state)) == ["b2", "w2"]
    again = Module(MLP.training_model, state)
    assert again.arena.names == ("w2", "b2")
    steps(again, MLP, 3)
    for name, parameter in state.parameters:
        np.testing.assert_array_equal(parameter.data, straight.state.parameters[name].data)


def test_the_file_lists_what_the_artifacts_can_train(tmp_path: Path) -> None:
    """So that the reference, and every Module with another choice, reads it too."""
    module = module_of(MLP, trainable=["b2"])
    CheckpointState.save_checkpoint(module.state, tmp_path / "checkpoint")
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    assert len(state.to_checkpoint().trainable) == 4
    whole = Module(MLP.training_model, state, trainable=["*"])
    assert trained(whole.state) == ["b1", "b2", "w1", "w2"]
    assert whole.state.chosen is None


def test_a_damaged_choice_in_a_checkpoint_is_refused(tmp_path: Path) -> None:
    state = CheckpointState.load_checkpoint(MLP.checkpoint)
    state.private["edge_train.trainable"] = "[1]"
    CheckpointState.save_checkpoint(state, tmp_path / "checkpoint")
    with pytest.raises(CheckpointError, match=r"edge_train\.trainable.*JSON list"):
        CheckpointState.load_checkpoint(tmp_path / "checkpoint")


def test_another_choice_on_the_same_state_takes_over() -> None:
    first = module_of(MLP)
    steps(first, MLP, 2)
    moments = {k: v.copy() for k, v in first.state.groups["group0"].moments["b2"].items()}
    second = Module(MLP.training_model, first.state, trainable=["b2"])
    assert second.arena.names == ("b2",)
    optimizer = Optimizer(MLP.optimizer_model, second)
    assert list(optimizer.group.moments) == ["b2"]
    for kind, moment in optimizer.group.moments["b2"].items():
        np.testing.assert_array_equal(moment, moments[kind])
    steps(second, MLP, 1)
    with pytest.raises(ArtifactError, match="trains one choice at a time"):
        first(**MLP.feed)
    whole = Module(MLP.training_model, first.state, trainable=["*"])
    with pytest.raises(CheckpointError, match=r"lacks the .* 'w1'.*clear state\.groups before"):
        Optimizer(MLP.optimizer_model, whole)
    first.state.groups.clear()
    optimizer = Optimizer(MLP.optimizer_model, whole)
    before = whole.state.parameters["w1"].data.copy()
    whole(**MLP.feed)
    assert optimizer.step()
    assert (whole.state.parameters["w1"].data != before).any()


def test_accumulation_works_on_a_subset() -> None:
    module = module_of(MLP, trainable=["w1"])
    module(**MLP.feed)
    once = gradients(module)["w1"]
    module(**MLP.feed)
    np.testing.assert_allclose(gradients(module)["w1"], 2 * once, rtol=1e-6)


def test_a_nominal_state_takes_a_choice(tmp_path: Path) -> None:
    source = module_of(MLP)
    state = CheckpointState.load_checkpoint(MLP.nominal_checkpoint)
    module = Module(MLP.training_model, state, trainable=["*2"])
    module.copy_buffer_to_parameters(source.get_contiguous_parameters(), trainable_only=False)
    assert module(**MLP.feed) == source(**MLP.feed)
    assert list(gradients(module)) == ["b2", "w2"]


@pytest.mark.parametrize(
    ("patterns", "error", "text"),
    [
        (["w3"], ValueError, r"'w3' is not a parameter; did you mean \['w2', 'w1'\]"),
        (["head.*", "w1"], ValueError, "1 entries.*\n.*'head.*' matches no parameter; the train"),
        ([], ValueError, "trainable is empty"),
        ("w1", TypeError, r"trainable=\['classifier"),
        ([b"w1"], TypeError, "expected strings"),
    ],
)
def test_what_names_nothing_is_told(patterns: object, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        module_of(MLP, trainable=patterns)


def test_what_the_artifacts_froze_is_told() -> None:
    frozen = next(name for name, p in module_of(HEAD).state.parameters if not p.requires_grad)
    with pytest.raises(ValueError, match="no gradient; generate the artifacts again"):
        module_of(HEAD, trainable=[frozen])


def test_a_refused_choice_changes_nothing() -> None:
    module = module_of(MLP, trainable=["b1"])
    with pytest.raises(ValueError, match="not a parameter"):
        Module(MLP.training_model, module.state, trainable=["nothing"])
    assert trained(module.state) == ["b1"]
    module(**MLP.feed)
    assert np.any(gradients(module)["b1"])


def test_the_graph_loses_what_only_the_others_needed() -> None:
    model = onnx_codec.load(MLP.training_model)
    roles = Roles.of(model.graph, {value.name for value in model.graph.inputs[2:]})
    part = subset.training_subset(model, {roles.trainable["b2"]}).graph
    assert not any("fc1_Grad" in node.name for node in part.nodes)
    assert len(part.nodes) < len(model.graph.nodes) - 6
    assert len(part.inputs) == len(model.graph.inputs) - 3
    assert subset.training_subset(model, set(roles.trainable.values())) is model


def test_a_name_with_pattern_characters_means_itself() -> None:
    names = ["a[0].w", "a0.w", "b"]
    assert subset.choose(["a[0].w"], names, []) == ("a[0].w",)
    assert subset.choose(["a[0]*"], names, []) == ("a0.w",)
    assert subset.choose(["b", "*.w"], names, []) == tuple(names)
