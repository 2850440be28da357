"""The Optimizer on a Module of given gradients: numbers, state, settings, refusals."""

from __future__ import annotations

import logging
import math

import numpy as np
import pytest
from support import optimizer_graphs as graphs
from support.optimizer_graphs import FakeModule
from support.zoo import DETERMINISTIC, SEIZURE, ZOO

from edge_train.arena import Arena
from edge_train.kernels import pool
from edge_train.optimizer import Optimizer

ADAMW = graphs.adamw(adam_mode=1, epsilon=1e-6, weight_decay=0.0)


@pytest.fixture
def module() -> FakeModule:
    module = FakeModule()
    module.arena.weights[...] = np.linspace(-1, 1, module.arena.size)
    module.fill(0)
    return module


def _train(optimizer: Optimizer, module: FakeModule, first: int, steps: int) -> None:
    for seed in range(first, first + steps):
        module.fill(seed)
        optimizer.step()


# ---- numbers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("clips", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("moments", ["float32", "8bit"])
def test_the_bits_do_not_depend_on_who_shares_the_pass(
    moments: str, clips: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One thread takes whole buffers, several take pieces; around a step that flushes."""
    size, results = 3 * pool.PIECE + 17, []
    for threads, worth in (("1", 0.0), ("3", 0.0), ("3", 1e9)):
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
        monkeypatch.setattr(pool, "WORTH", worth)
        module = FakeModule(arena=Arena([("w", (size,))]))
        optimizer = Optimizer(ADAMW, module, moments=moments)
        optimizer.max_grad_norm = 1.0 if clips else None
        optimizer.group.step = 62
        _train(optimizer, module, 0, 3)
        module.arena.gradients[-1] = np.nan
        assert not optimizer.step()
        assert optimizer.step_count == 65
        results.append(module.arena.weights)
    assert np.any(results[0])
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])


def _golden_excess(name: str, perturb: float = 0.0) -> float:
    """Largest distance from the reference's weights beyond one ulp, over its ten steps."""
    case = ZOO[name]
    grads = [case.grads(step) for step in range(case.steps)]
    arena = Arena([(param, grad.shape) for param, grad in grads[0].items()])
    optimizer = Optimizer(case.optimizer_model, FakeModule(arena=arena))
    optimizer.set_learning_rate(case.learning_rate)
    worst = 0.0
    for step in range(case.steps):
        before, after = case.params(step), case.params(step + 1)
        for param in arena.names:
            arena.view(arena.weights, param)[...] = before[param]
            arena.view(arena.gradients, param)[...] = grads[step][param]
        assert optimizer.step()
        for param in arena.names:
            got = arena.view(arena.weights, param) + np.float32(perturb)
            expected = after[param]
            beyond = np.abs(got.astype(np.float64) - expected) - np.spacing(np.abs(expected))
            worst = max(worst, float(beyond.max(initial=0.0)))
    return worst


@pytest.mark.parametrize("name", DETERMINISTIC)
def test_ten_steps_of_the_zoo_are_the_references(name: str) -> None:
    assert _golden_excess(name) <= 1e-8


def test_the_golden_comparison_sees_a_small_error() -> None:
    assert _golden_excess("mlp_MSELoss", perturb=1e-6) > 1e-8


def test_sgd(module: FakeModule) -> None:
    expected = module.arena.weights - np.float32(0.25) * module.arena.gradients
    optimizer = Optimizer(graphs.sgd(), module)
    optimizer.set_learning_rate(0.25)
    assert optimizer.step()
    np.testing.assert_array_equal(module.arena.weights, expected)
    assert optimizer.step_count == 1


def test_adam_mode_0_decays_first(module: FakeModule) -> None:
    optimizer = Optimizer(graphs.adamw(), module)
    optimizer.set_learning_rate(0.5)
    before, g = module.arena.weights.astype(np.float64), module.arena.gradients.astype(np.float64)
    optimizer.step()
    expected = before * (1 - 0.5 * 0.01) - 0.5 * g / (np.abs(g) + 1e-8)
    np.testing.assert_allclose(module.arena.weights, expected, rtol=1e-5, atol=1e-6)


def test_clipping_is_in_place_on_the_gradients(module: FakeModule) -> None:
    gradients = module.arena.gradients
    norm = float(np.linalg.norm(gradients.astype(np.float64)))
    expected = gradients * np.float32(0.5 / (norm + 1e-6))
    Optimizer(graphs.sgd(max_norm=0.5), module).step()
    np.testing.assert_allclose(gradients, expected, rtol=1e-6)


def test_a_step_without_gradients_changes_nothing_but_the_counter(module: FakeModule) -> None:
    module.arena.gradients[...] = 0
    before = module.arena.weights.copy()
    optimizer = Optimizer(ADAMW, module)
    assert optimizer.step()
    np.testing.assert_array_equal(module.arena.weights, before)
    assert optimizer.step_count == 1


def test_the_app_that_was_recorded_has_an_optimizer_we_know() -> None:
    assert Optimizer(SEIZURE.optimizer_model, FakeModule()).eps == np.float32(1e-6)


@pytest.mark.parametrize("moments", ["float32", "8bit"])
def test_moments_that_were_thrown_away_start_from_zeros(moments: str) -> None:
    modules = FakeModule(), FakeModule()
    optimizers = [Optimizer(ADAMW, module, moments=moments) for module in modules]
    for module, optimizer in zip(modules, optimizers, strict=True):
        _train(optimizer, module, 0, 3)
    optimizers[0].group.moments.clear()
    optimizers[1].reset_state()
    optimizers[1].group.step = 3
    for module, optimizer in zip(modules, optimizers, strict=True):
        _train(optimizer, module, 3, 1)
    np.testing.assert_array_equal(modules[0].arena.weights, modules[1].arena.weights)
    told = [{n: np.asarray(m["momentum1"]) for n, m in o.group.moments.items()} for o in optimizers]
    assert told[0].keys() == {"w", "b"}
    for name, value in told[0].items():
        np.testing.assert_array_equal(value, told[1][name])


# ---- settings -----------------------------------------------------------------------------------


def test_u075_settings_have_the_artifacts_defaults_and_can_be_set(module: FakeModule) -> None:
    optimizer = Optimizer(ZOO["mlp_MSELoss"].optimizer_model, module)
    f32 = np.float32
    assert optimizer.betas == (f32(0.9), f32(0.999))
    assert (optimizer.eps, optimizer.weight_decay) == (f32(1e-6), 0.0)
    assert optimizer.max_grad_norm is None
    assert optimizer.skip_nonfinite is True
    optimizer.weight_decay, optimizer.max_grad_norm = 0.01, 1.0
    optimizer.betas, optimizer.eps = (0.8, 0.9), 1e-3
    optimizer.set_learning_rate(0.5)
    w, g = module.arena.weights.astype(np.float64), module.arena.gradients.astype(np.float64)
    optimizer.step()
    g *= 1 / (np.linalg.norm(g) + 1e-6)
    m, v = 0.2 * g, 0.1 * g * g
    w = w - 0.5 * math.sqrt(0.1) / 0.2 * m / (np.sqrt(v) + 1e-3)
    np.testing.assert_allclose(module.arena.weights, w * (1 - 0.5 * 0.01), rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("betas", (0.9, 1.0), ValueError),
        ("betas", (-0.1, 0.9), ValueError),
        ("betas", (math.nan, 0.9), ValueError),
        ("betas", 0.9, TypeError),
        ("betas", (0.9,), TypeError),
        ("eps", -1e-6, ValueError),
        ("eps", math.inf, ValueError),
        ("weight_decay", "0.1", TypeError),
        ("weight_decay", True, TypeError),
        ("weight_decay", 1e39, ValueError),
        ("max_grad_norm", 0, ValueError),
        ("max_grad_norm", math.nan, ValueError),
        ("skip_nonfinite", 1, TypeError),
    ],
)
def test_a_wrong_setting_is_refused_and_the_old_one_kept(
    name: str, value: object, error: type[Exception], module: FakeModule
) -> None:
    optimizer = Optimizer(ADAMW, module)
    before = getattr(optimizer, name)
    with pytest.raises(error, match=name):
        setattr(optimizer, name, value)
    assert getattr(optimizer, name) == before


def test_sgd_has_none_of_adamws_settings(module: FakeModule) -> None:
    optimizer = Optimizer(graphs.sgd(), module)
    optimizer.max_grad_norm = 1.0
    for name in ("betas", "eps"):
        with pytest.raises(AttributeError, match=f"SGDOptimizerV2 has no {name}"):
            getattr(optimizer, name)
        with pytest.raises(AttributeError, match=f"SGDOptimizerV2 has no {name}"):
            setattr(optimizer, name, 0.1)


@pytest.mark.parametrize("rate", [-0.1, math.nan, math.inf, 1e39])
def test_a_rate_that_cannot_be_is_refused(rate: float, module: FakeModule) -> None:
    optimizer = Optimizer(ADAMW, module)
    with pytest.raises(ValueError, match="learning_rate"):
        optimizer.set_learning_rate(rate)
    assert optimizer.get_learning_rate() == 0.001


# ---- what is not a number, what is not there ----------------------------------------------------


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, None])
@pytest.mark.parametrize("model", [ADAMW, graphs.sgd(max_norm=1.0)], ids=["adamw", "sgd"])
def test_u070_a_bad_loss_or_gradient_leaves_everything_alone(
    bad: float | None, model: bytes, module: FakeModule, caplog: pytest.LogCaptureFixture
) -> None:
    optimizer = Optimizer(model, module)
    assert optimizer.step()
    before = [module.arena.weights.copy(), module.arena.moment(0).copy()]
    if bad is None:
        module.loss_is_finite = False
    else:
        module.arena.gradients[7] = bad
    with caplog.at_level(logging.WARNING, "edge_train"):
        assert [optimizer.step(), optimizer.step()] == [False, False]
    np.testing.assert_array_equal(before, [module.arena.weights, module.arena.moment(0)])
    assert (optimizer.step_count, optimizer.skipped_steps) == (1, 2)
    assert [record.name for record in caplog.records] == ["edge_train"]
    assert f"gradients of: {'none' if bad is None else 'b'}" in caplog.text

    module.loss_is_finite = True
    module.fill(1)
    assert optimizer.step()
    assert (optimizer.step_count, optimizer.skipped_steps) == (2, 2)


def test_skipping_can_be_switched_off(module: FakeModule) -> None:
    optimizer = Optimizer(ADAMW, module, skip_nonfinite=False)
    module.arena.gradients[0] = math.nan
    assert optimizer.step()
    assert np.isnan(module.arena.weights[0])
    assert optimizer.skipped_steps == 0


def test_large_gradients_are_no_reason_to_skip(module: FakeModule) -> None:
    module.arena.gradients[...] = 3e38
    assert Optimizer(graphs.sgd(max_norm=1.0), module).step()
    assert np.isfinite(module.arena.weights).all()


@pytest.mark.parametrize("name", ["learning_rate", "weigth_decay", "max_norm"])
def test_a_mistyped_setting_is_refused(name: str, module: FakeModule) -> None:
    """U075: it would change nothing, and say nothing."""
    optimizer = Optimizer(graphs.adamw(), module)
    with pytest.raises(AttributeError, match=f"no setting '{name}'.*weight_decay"):
        setattr(optimizer, name, 0.1)


def test_a_module_is_asked_for(module: FakeModule) -> None:
    with pytest.raises(TypeError, match="expected a Module, got CheckpointState"):
        Optimizer(graphs.adamw(), module.state)  # type: ignore[arg-type]
