"""Optimizers asked for instead of the graph's: numbers, settings, state, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import optimizer_graphs as graphs
from support.optimizer_graphs import FakeModule

from edge_train.arena import Arena
from edge_train.checkpoint.state import CheckpointState
from edge_train.errors import CheckpointError
from edge_train.optimizer import Optimizer

ADAMW = graphs.adamw(adam_mode=1, epsilon=1e-6, weight_decay=0.0)
SGD = graphs.sgd()
#: what is asked for, and what is set then
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "adamw": ({"algorithm": "adamw"}, {"weight_decay": 0.1}),
    "sgd": ({"algorithm": "sgd"}, {"weight_decay": 0.1}),
    "momentum": ({"algorithm": "sgd"}, {"momentum": 0.9}),
    "nesterov": ({"algorithm": "sgd"}, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    "lion": ({"algorithm": "lion"}, {"weight_decay": 0.1}),
}


def _module(state: CheckpointState | None = None) -> FakeModule:
    module = FakeModule(state, Arena([("w", (40, 30)), ("b", (30,)), ("c", (600,))]))
    module.arena.weights[...] = np.linspace(-1, 1, module.arena.size)
    module.fill(0)
    return module


def _optimizer(case: str, module: FakeModule, model: bytes = ADAMW) -> Optimizer:
    options, settings = CASES[case]
    optimizer = Optimizer(model, module, **options)
    for name, value in settings.items():
        setattr(optimizer, name, value)
    optimizer.set_learning_rate(0.02)
    return optimizer


def _train(optimizer: Optimizer, module: FakeModule, first: int, steps: int) -> None:
    for seed in range(first, first + steps):
        module.fill(seed)
        assert optimizer.step()


def _in_double(case: str, gradients: list[np.ndarray]) -> np.ndarray:
    w = np.linspace(-1, 1, gradients[0].size).astype(np.float32).astype(np.float64)
    m, v = np.zeros_like(w), np.zeros_like(w)
    settings = CASES[case][1]
    decay, mu = settings.get("weight_decay", 0.0), settings.get("momentum", 0.0)
    for t, g in enumerate(gradients, 1):
        if case == "lion":
            w = w * (1 - 0.02 * decay) - 0.02 * np.sign(0.9 * m + 0.1 * g)
            m = 0.99 * m + 0.01 * g
        elif case == "adamw":
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
            rate = 0.02 * np.sqrt(1 - 0.999**t) / (1 - 0.9**t)
            w = (w - rate * m / (np.sqrt(v) + 1e-6)) * (1 - 0.02 * decay)
        else:
            d = g + decay * w
            m = mu * m + d
            w = w - 0.02 * (d + mu * m if settings.get("nesterov") else m)
    return w


@pytest.mark.parametrize("case", CASES)
def test_five_steps_in_double(case: str) -> None:
    module = _module()
    optimizer, gradients = _optimizer(case, module), []
    for seed in range(5):
        module.fill(seed)
        gradients.append(module.arena.gradients.astype(np.float64))
        optimizer.step()
    expected = _in_double(case, gradients)
    np.testing.assert_allclose(module.arena.weights, expected, rtol=3e-5, atol=3e-6)
    assert not np.allclose(module.arena.weights, _in_double(case, gradients[:4]), atol=1e-4)


@pytest.mark.parametrize("case", CASES)
def test_a_resumed_run_equals_an_uninterrupted_one(case: str, tmp_path: Path) -> None:
    module = _module()
    optimizer = _optimizer(case, module)
    _train(optimizer, module, 0, 4)
    CheckpointState.save_checkpoint(module.state, tmp_path / "checkpoint")
    again = _module(CheckpointState.load_checkpoint(tmp_path / "checkpoint"))
    again.arena.weights[...] = module.arena.weights
    _train(optimizer, module, 4, 3)
    _train(_optimizer(case, again), again, 4, 3)
    np.testing.assert_array_equal(again.arena.weights, module.arena.weights)


def test_the_settings_are_those_of_the_algorithm() -> None:
    lion = Optimizer(ADAMW, _module(), algorithm="lion")
    assert (lion.betas, lion.weight_decay) == ((0.9, 0.99), 0.0)
    with pytest.raises(AttributeError, match="Lion has no eps"):
        lion.eps = 1e-3
    sgd = Optimizer(SGD, _module())
    assert (sgd.momentum, sgd.nesterov, sgd.weight_decay) == (0.0, False, 0.0)
    with pytest.raises(ValueError, match=r"momentum must be a number in \[0, 1\), got 1"):
        sgd.momentum = 1.0
    adamw = Optimizer(SGD, _module(), algorithm="adamw")
    assert adamw.betas == (0.9, 0.999)


def test_the_graphs_clipping_stays() -> None:
    assert Optimizer(graphs.sgd(max_norm=0.5), _module(), algorithm="lion").max_grad_norm == 0.5


@pytest.mark.parametrize(
    ("algorithm", "error", "text"),
    [("adam", ValueError, "must be one of adamw, sgd, lion"), (3, TypeError, "must be a str")],
)
def test_another_algorithm_is_refused(algorithm: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        Optimizer(ADAMW, _module(), algorithm=algorithm)


def test_moments_of_another_algorithm_that_do_not_suffice_are_refused() -> None:
    module = _module()
    Optimizer(SGD, module).step()
    with pytest.raises(CheckpointError, match=r"'w' has no momentum1.*clear state\.groups"):
        Optimizer(ADAMW, module)


def test_a_zero_momentum_leaves_the_moment_untouched() -> None:
    module = _module()
    _train(Optimizer(SGD, module), module, 0, 65)
    assert not module.arena.moment(0).any()
