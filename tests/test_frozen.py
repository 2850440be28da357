"""What trainable=[...] froze, as constants of the training session that follow their Parameter."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from support.training import module_of
from support.zoo import ZOO, Case

from edge_train import frozen
from edge_train.api import CheckpointState, Module, Optimizer
from edge_train.errors import ArtifactError

MLP = ZOO["mlp_CrossEntropyLoss"]
CONV = ZOO["conv_nobn"]
BN = ZOO["conv_bn_maxpool_gap"]


def held(module: Module) -> list[str]:
    return [n for n, p in module.state.parameters if not p.data.flags.writeable]


def step(module: Module, case: Case) -> dict[str, np.ndarray]:
    """The loss and the gradients of one step."""
    module.lazy_reset_grad()
    found = {"loss": np.asarray(module(**case.feed))}
    return found | {n: p.grad.copy() for n, p in module.state.parameters if p.grad is not None}


def close(got: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> bool:
    return all(
        float(np.linalg.norm(value - expected[name]))
        <= 2e-6 * max(float(np.linalg.norm(expected[name])), 1e-2)
        for name, value in got.items()
    )


@pytest.mark.parametrize(("case", "trained"), [(MLP, "*2"), (CONV, "wf"), (BN, "wf")])
def test_the_numbers_are_those_of_fed_weights(case: Case, trained: str) -> None:
    module, whole = module_of(case, trainable=[trained]), module_of(case)
    assert held(module)
    assert close(step(module, case), step(whole, case))


def test_a_module_that_is_refused_holds_nothing() -> None:
    """The state stays as it was: its arrays can be written as ever."""
    state = CheckpointState.load_checkpoint(MLP.checkpoint)
    with pytest.raises(ArtifactError, match="the eval graph makes gradients"):
        Module(MLP.training_model, state, MLP.training_model, trainable=["*2"])
    assert state.chosen is None
    assert all(parameter.data.flags.writeable for _, parameter in state.parameters)


def test_an_assignment_counts_at_the_next_step() -> None:
    module, whole = module_of(MLP, trainable=["*2"]), module_of(MLP)
    before = step(module, MLP)
    value = np.full_like(module.state.parameters["w1"].data, 0.25)
    for each in (module, whole):
        each.state.parameters["w1"] = value
    after = step(module, MLP)
    assert not close(after, before)
    assert close(after, step(whole, MLP))
    module.state.parameters["b1"].data = np.full(5, 0.5, np.float32)
    whole.state.parameters["b1"].data = np.full(5, 0.5, np.float32)
    assert close(step(module, MLP), step(whole, MLP))


def test_a_flat_buffer_counts_at_the_next_step() -> None:
    module, whole = module_of(MLP, trainable=["*2"]), module_of(MLP)
    step(module, MLP)
    flat = np.linspace(-1, 1, module.get_parameters_size(False), dtype=np.float32)
    for each in (module, whole):
        each.copy_buffer_to_parameters(flat, trainable_only=False)
    assert close(step(module, MLP), step(whole, MLP))


def test_accumulating_and_fused_steps_follow_too() -> None:
    module, whole = module_of(MLP, trainable=["*2"]), module_of(MLP)
    for each in (module, whole):
        each(**MLP.feed)
        each(**MLP.feed)
    doubled = whole.state.parameters["w2"].grad
    np.testing.assert_allclose(module.state.parameters["w2"].grad, doubled, rtol=1e-5, atol=1e-7)
    value = np.full_like(module.state.parameters["w1"].data, 0.25)
    for each in (module, whole):
        each.state.parameters["w1"] = value
    assert close(step(module, MLP), step(whole, MLP))


def test_a_view_cannot_be_written_and_says_so() -> None:
    module = module_of(MLP, trainable=["*2"])
    assert held(module) == ["b1", "w1"]
    with pytest.raises(ValueError, match="read-only"):
        module.state.parameters["w1"].data[0, 0] = 1.0
    module.state.parameters["w2"].data[0, 0] = 1.0
    assert held(module_of(MLP)) == []


def disagreement(module: Module) -> float:
    """Between training and evaluation of the same weights."""
    module.train().lazy_reset_grad()
    losses = float(module(**MLP.feed)), float(module.eval()(**MLP.feed))
    module.train()
    return abs(losses[0] - losses[1])


@pytest.mark.parametrize("device", ["cpu", "file"])
def test_a_view_that_was_taken_before_is_detached(device: str) -> None:
    state = CheckpointState.load_checkpoint(MLP.checkpoint, device=device)
    views = {name: parameter.data for name, parameter in state.parameters}
    module = Module(MLP.training_model, state, MLP.eval_model, trainable=["*2"])
    before = {name: parameter.data.copy() for name, parameter in state.parameters}
    for old in views.values():
        old[...] = -0.3
    for name, parameter in state.parameters:
        np.testing.assert_array_equal(parameter.data, before[name])
    assert disagreement(module) < 1e-5
    again = Module(MLP.training_model, state, MLP.eval_model, trainable=["*"])
    between = state.parameters["w1"].data
    third = Module(MLP.training_model, state, MLP.eval_model, trainable=["*2"])
    between[...] = -0.3
    assert disagreement(third) < 1e-5
    np.testing.assert_array_equal(state.parameters["w1"].data, before["w1"])
    assert again.state is state


def test_a_module_that_is_bound_follows_where_another_one_holds() -> None:
    """A nominal state gets its constants with the second Module; the first reads on."""
    state = CheckpointState.load_checkpoint(MLP.nominal_checkpoint)
    first = Module(MLP.training_model, state, MLP.eval_model, trainable=["*2"])
    source = module_of(MLP)
    first.copy_buffer_to_parameters(source.get_contiguous_parameters(), trainable_only=False)
    optimizer = Optimizer(MLP.optimizer_model, first)
    step(first, MLP)
    assert optimizer.step()
    first.eval()(**MLP.feed)
    old = state.parameters["w1"].data
    second = Module(MLP.training_model, state, MLP.eval_model)
    assert held(second) == ["b1", "w1"]
    old[...] = -0.3
    state.parameters["w1"].data = np.full_like(old, 0.25)
    losses = []
    for module in (first, second):
        assert disagreement(module) < 1e-5
        losses.append(float(module.eval()(**MLP.feed)))
        module.train()
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    first.lazy_reset_grad()
    first(**MLP.feed)
    assert optimizer.step()
    assert optimizer.step_count == 2


def test_large_weights_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are no constants: a view from before still changes training and evaluation."""
    monkeypatch.setattr(frozen, "MOST", 8)
    state = CheckpointState.load_checkpoint(MLP.checkpoint)
    old = state.parameters["w1"].data
    module = Module(MLP.training_model, state, MLP.eval_model, trainable=["*2"])
    before = float(module(**MLP.feed))
    old[...] = -0.3
    assert disagreement(module) < 1e-5
    assert float(module(**MLP.feed)) != before


def test_training_everything_again_lets_go() -> None:
    first = module_of(MLP, trainable=["*2"])
    again = Module(MLP.training_model, first.state, trainable=["*"])
    assert held(again) == []
    again.state.parameters["w1"].data[...] = 0.5
    assert close(
        step(again, MLP), step(Module(MLP.training_model, copy.deepcopy(again.state)), MLP)
    )


def test_a_convolution_in_the_path_of_a_gradient_stays_as_it_is() -> None:
    """ConvGrad reads its weight; a convolution before the first trained one is packed."""
    case = ZOO["depthwise_static_batch"]
    assert not set(held(module_of(case, trainable=["db"]))) & {"dw", "pw"}
    assert held(module_of(case, trainable=["wf"])) == ["bf", "db", "dw", "pb", "pw"]
    unet = ZOO["unet_concat_residual"]
    deep = module_of(unet, trainable=["w1"])
    assert held(deep) == []
    assert close(step(deep, unet), step(module_of(unet), unet))


def test_large_weights_stay_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frozen, "MOST", 8)
    module = module_of(MLP, trainable=["*2"])
    assert held(module) == []
    assert close(step(module, MLP), step(module_of(MLP), MLP))


def test_a_nominal_state_has_no_constants_yet() -> None:
    state = CheckpointState.load_checkpoint(MLP.nominal_checkpoint)
    module = Module(MLP.training_model, state, trainable=["*2"])
    source = module_of(MLP)
    module.copy_buffer_to_parameters(source.get_contiguous_parameters(), trainable_only=False)
    assert held(module) == []
    assert close(step(module, MLP), step(source, MLP))


def test_optimizer_steps_leave_the_constants_alone() -> None:
    module = module_of(MLP, trainable=["*2"])
    optimizer = Optimizer(MLP.optimizer_model, module)
    before = module.state.parameters["w1"].data.copy()
    for _ in range(3):
        step(module, MLP)
        optimizer.step()
    np.testing.assert_array_equal(module.state.parameters["w1"].data, before)
