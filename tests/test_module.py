"""Module: modes, outputs, gradients that add up, the flat buffer, several Modules on one state."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from support.snapshot import differences, snapshot
from support.training import module_of, session_of
from support.zoo import SEIZURE, ZOO, ZOO_MODELS

from edge_train.api import CheckpointState, Module, Optimizer
from edge_train.errors import ArtifactError
from edge_train.graph import ir, onnx_codec

MLP = ZOO["mlp_CrossEntropyLoss"]
BN = ZOO["conv_bn_maxpool_gap"]
HEAD = ZOO["frozen_backbone_only_head"]
OrtValue = onnxruntime.OrtValue


def gradients(module: Module) -> dict[str, np.ndarray]:
    return {
        name: parameter.grad.copy()
        for name, parameter in module.state.parameters
        if parameter.grad is not None
    }


def weights(module: Module) -> dict[str, np.ndarray]:
    return {name: parameter.data.copy() for name, parameter in module.state.parameters}


# ---- gradients ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["conv_bn_maxpool_gap", "transformer_LNop_3out_opset17"])
def test_u068_gradients_add_up_until_reset(name: str) -> None:
    """U068: three different batches: the sum of their gradients; a reset starts anew."""
    case = ZOO[name]
    module = module_of(case)
    batches = [
        {key: np.roll(value, shift, axis=-1) for key, value in case.feed.items()}
        for shift in range(3)
    ]
    singles = []
    for batch in batches:
        module.lazy_reset_grad()
        module(**batch)
        singles.append(gradients(module))
    module.lazy_reset_grad()
    for batch in batches:
        module(**batch)
    for parameter, total in gradients(module).items():
        expected = np.sum([single[parameter] for single in singles], axis=0, dtype=np.float64)
        scale = max(np.linalg.norm(expected), 1e-2)
        assert np.linalg.norm(total - expected) <= 1e-5 * scale, parameter


def test_u068_two_steps_double_the_gradient_and_reset_is_lazy() -> None:
    """U068: twice the value; after lazy_reset_grad the old ones stay until the next step."""
    module = module_of(MLP)
    module(**MLP.feed)
    once = gradients(module)
    module(**MLP.feed)
    twice = gradients(module)
    for name, value in once.items():
        np.testing.assert_allclose(twice[name], 2 * value, rtol=1e-6)
    module.lazy_reset_grad()
    assert all(np.array_equal(value, twice[name]) for name, value in gradients(module).items())
    module(**MLP.feed)
    assert all(np.array_equal(value, once[name]) for name, value in gradients(module).items())


def test_a_fresh_module_has_zero_gradients() -> None:
    assert not any(value.any() for value in gradients(module_of(MLP)).values())


@pytest.mark.parametrize("name", ZOO_MODELS)
def test_evaluation_touches_nothing(name: str) -> None:
    """Neither weights nor statistics nor gradients, also between two steps that add up."""
    case = ZOO[name]
    module = module_of(case)
    module(**case.feed)
    before = snapshot(module.state)
    module.eval()(**case.feed)
    assert differences(before, snapshot(module.state)) == []


def test_frozen_parameters_have_no_gradient_and_do_not_move() -> None:
    module, optimizer = session_of(HEAD)
    before = weights(module)
    for _ in range(3):
        module.lazy_reset_grad()
        module(**HEAD.feed)
        optimizer.step()
    moved = {name for name, value in weights(module).items() if np.any(value != before[name])}
    assert set(gradients(module)) == {"wf", "bf"}
    # statistics are data, not weights: they move in a frozen layer too, as the reference moves them
    assert moved == {"wf", "bf", "mu", "va"}
    np.testing.assert_allclose(weights(module)["mu"], HEAD.params(3)["mu"], rtol=1e-5)


# ---- inputs and outputs ---------------------------------------------------------------------


def test_ortvalues_in_ortvalues_out() -> None:
    module = module_of(MLP)
    expected = module(**MLP.feed)
    assert isinstance(expected, np.ndarray)
    assert expected.shape == ()
    values = {name: OrtValue.ortvalue_from_numpy(value) for name, value in MLP.feed.items()}
    module.lazy_reset_grad()
    loss = module(**values)
    assert isinstance(loss, OrtValue)
    assert loss.numpy() == expected
    module.lazy_reset_grad()
    mixed = module(MLP.feed["x"], values["labels"])
    assert isinstance(mixed, np.ndarray)
    assert mixed == expected
    assert isinstance(module.eval()(**values), OrtValue)


def with_output(path: Path, name: str, rank: int) -> bytes:
    """The graph with one more output."""
    model = onnx_codec.load(path)
    outputs = [*model.graph.outputs, ir.Value(name, ir.FLOAT, (None,) * rank)]
    return onnx_codec.encode(replace(model, graph=replace(model.graph, outputs=outputs)))


def test_an_input_may_be_called_self() -> None:
    model = onnx_codec.load(MLP.training_model)
    (x, *inputs), graph = model.graph.inputs, model.graph
    nodes = [
        replace(node, inputs=["self" if name == x.name else name for name in node.inputs])
        for node in graph.nodes
    ]
    graph = replace(graph, inputs=[replace(x, name="self"), *inputs], nodes=nodes)
    state = CheckpointState.load_checkpoint(MLP.checkpoint)
    module = Module(onnx_codec.encode(replace(model, graph=graph)), state)
    values = {"self": MLP.feed["x"], "labels": MLP.feed["labels"]}
    assert module(**values) == module_of(MLP)(**MLP.feed)


def test_several_outputs_come_as_a_tuple_and_stay_as_they_were() -> None:
    state = CheckpointState.load_checkpoint(MLP.checkpoint)
    module = Module(MLP.training_model, state, with_output(MLP.eval_model, "y", 2)).eval()
    assert module.output_names() == ["onnx::loss::2", "y"]
    loss, logits = module(**MLP.feed)
    kept = loss.copy(), logits.copy()
    assert logits.shape == (2, 3)
    other = module(-MLP.feed["x"], MLP.feed["labels"])
    assert not np.array_equal(other[1], kept[1])
    np.testing.assert_array_equal(loss, kept[0])
    np.testing.assert_array_equal(logits, kept[1])
    del module, state
    np.testing.assert_array_equal(logits, kept[1])


def test_names_follow_the_mode() -> None:
    module = module_of(MLP)
    assert module.training
    assert module.input_names() == ["x", "labels"]
    assert module.output_names() == ["onnx::loss::2"]
    assert module.eval() is module
    assert not module.training
    assert module.input_names() == ["x", "labels"]
    assert module.train() is module
    assert module.train(False).training is False


def test_batch_sizes_may_change_from_step_to_step() -> None:
    """The mean of the single rows' losses and gradients is that of the batch."""
    module = module_of(MLP)
    rng = np.random.default_rng(0)
    x, labels = rng.standard_normal((7, 4)).astype(np.float32), rng.integers(0, 3, 7)
    for rows in (1, 7, 3, 7, 2):
        losses, sums = [], None
        for row in range(rows):
            module.lazy_reset_grad()
            losses.append(float(module(x[row : row + 1], labels[row : row + 1])))
            grad = module.state.parameters["w1"].grad.astype(np.float64)
            sums = grad if sums is None else sums + grad
        module.lazy_reset_grad()
        assert float(module(x[:rows], labels[:rows])) == pytest.approx(np.mean(losses), rel=1e-6)
        np.testing.assert_allclose(module.state.parameters["w1"].grad, sums / rows, atol=1e-7)


def test_graphs_as_bytes_give_the_same_numbers() -> None:
    def loss(read: Callable[[Path], object]) -> tuple[float, float]:
        state = CheckpointState.load_checkpoint(read(BN.checkpoint))
        module = Module(read(BN.training_model), state, read(BN.eval_model))
        optimizer = Optimizer(read(BN.optimizer_model), module)
        module(**BN.feed)
        optimizer.step()
        return float(module(**BN.feed)), float(module.eval()(**BN.feed))

    expected = loss(lambda path: path)
    for read in (str, Path.read_bytes, lambda p: bytearray(p.read_bytes())):
        assert loss(read) == expected
    assert loss(lambda path: memoryview(path.read_bytes())) == expected


def test_session_options_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    make = onnxruntime.InferenceSession

    def spy(data: bytes, sess_options: object, **rest: object) -> object:
        seen.append(sess_options)
        return make(data, sess_options=sess_options, **rest)

    monkeypatch.setattr(onnxruntime, "InferenceSession", spy)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    module = module_of(MLP, session_options=options)
    for _ in range(2):
        module(**MLP.feed)  # the second one makes the adding session
    assert len(seen) == 5  # training graphs twice: to see what the optimizers make of it, to run
    assert all(given is options for given in seen)


def test_u061_eval_without_an_eval_graph_is_an_error_in_words() -> None:
    """U061: the reference crashes; here training goes on afterwards."""
    state = CheckpointState.load_checkpoint(MLP.checkpoint)
    module = Module(MLP.training_model, state)
    loss = float(module(**MLP.feed))
    module.eval()
    for call in (lambda: module(**MLP.feed), module.input_names, module.output_names):
        with pytest.raises(ArtifactError, match="eval_model_uri"):
            call()
    module.train().lazy_reset_grad()
    assert float(module(**MLP.feed)) == loss


# ---- parameters -----------------------------------------------------------------------------


def test_u076_weights_set_by_hand_count_from_the_next_step() -> None:
    """U076: a view, an item or a value set is what the graph reads; wrong ones are refused."""
    module = module_of(MLP)
    parameters = module.state.parameters
    view = parameters["w1"].data
    parameters["w1"] = np.zeros((5, 4), np.float32)
    assert not view.any()
    expected = np.maximum(parameters["b1"].data, 0) @ parameters["w2"].data.T
    logits = np.tile(expected + parameters["b2"].data, (2, 1)).astype(np.float64)
    logsumexp = np.log(np.exp(logits).sum(axis=1))
    wanted = np.mean(logsumexp - logits[[0, 1], MLP.feed["labels"]])
    assert float(module(**MLP.feed)) == pytest.approx(wanted, rel=1e-6)
    view[...] = 1
    assert float(module.eval()(**MLP.feed)) != pytest.approx(wanted, rel=1e-3)
    assert np.all(parameters["w1"].data == 1)
    for value, error in (
        (np.zeros((4, 5), np.float32), ValueError),
        (np.zeros((5, 4)), TypeError),
        ([[0.0] * 4] * 5, TypeError),
    ):
        with pytest.raises(error, match="'w1'"):
            parameters["w1"] = value
    assert np.all(parameters["w1"].data == 1)


def test_two_modules_share_weights_gradients_and_optimizer() -> None:
    one, optimizer = session_of(BN)
    two = Module(BN.training_model, one.state, BN.eval_model)
    assert one.arena is two.arena
    one(**BN.feed)
    held = gradients(two)
    assert held["w1"].any()
    optimizer.step()
    np.testing.assert_array_equal(weights(one)["w1"], weights(two)["w1"])
    assert float(one.eval()(**BN.feed)) == float(two.eval()(**BN.feed))
    del one
    two.train()(**BN.feed)
    assert optimizer.step()


def test_gradients_of_two_modules_on_one_state_add_up() -> None:
    one, optimizer = session_of(MLP)
    two = Module(MLP.training_model, one.state)
    one(**MLP.feed)
    once = gradients(one)
    two(**MLP.feed)
    for name, value in gradients(one).items():
        np.testing.assert_array_equal(value, 2 * once[name])
    one.lazy_reset_grad()
    two(**MLP.feed)
    np.testing.assert_equal(gradients(one), once)
    two(**{**MLP.feed, "x": np.full_like(MLP.feed["x"], np.nan)})
    assert not one.loss_is_finite
    assert not optimizer.step()


def test_a_new_module_on_the_state_does_not_add_to_gradients_of_before() -> None:
    one = module_of(MLP)
    one(**MLP.feed)
    once = gradients(one)
    Module(MLP.training_model, one.state)(**MLP.feed)
    np.testing.assert_equal(gradients(one), once)


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda state: pickle.loads(pickle.dumps(state))]
)
def test_a_copied_state_trains_by_itself(copied: Callable[[CheckpointState], Any]) -> None:
    one, optimizer = session_of(MLP)
    one(**MLP.feed)
    optimizer.step()
    two = Module(MLP.training_model, copied(one.state))
    again = Optimizer(MLP.optimizer_model, two)
    before = weights(two)
    for module, steps in ((one, optimizer), (two, again)):
        np.testing.assert_equal(weights(two), before)
        module.lazy_reset_grad()
        module(**MLP.feed)
        assert steps.step()
    assert not np.array_equal(weights(two)["w1"], before["w1"])
    np.testing.assert_equal(weights(two), weights(one))
    assert again.step_count == 2


def test_parameters_seen_before_the_module_are_the_same_objects() -> None:
    state = CheckpointState.load_checkpoint(MLP.checkpoint)
    parameter = state.parameters["w1"]
    parameter.data[0, 0] = 7
    module = Module(MLP.training_model, state, MLP.eval_model)
    assert state.parameters["w1"] is parameter
    assert parameter.data[0, 0] == 7
    assert np.shares_memory(parameter.data, module.arena.weights)
    assert np.shares_memory(parameter.grad, module.arena.gradients)


def test_seizure_takes_one_row_at_a_time() -> None:
    """A real app's artifacts train with a batch of one."""
    module, optimizer = session_of(SEIZURE)
    x, labels = SEIZURE.feed["input"], SEIZURE.feed["labels"]
    losses = []
    for row in (0, 1, 0, 1, 0, 1):
        module.lazy_reset_grad()
        losses.append(float(module(x[row : row + 1], labels[row : row + 1])))
        optimizer.step()
    assert np.isfinite(losses).all()
