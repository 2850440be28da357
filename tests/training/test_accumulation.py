"""Micro-batches: the weights of the big batch, for any sizes, losses and layouts."""

from __future__ import annotations

import io
import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from support.digits import digits, trainer
from support.zoo import ZOO, Case

from edge_train.api import CheckpointState, Module, Optimizer
from edge_train.data.sources import ArrayRows, Batches
from edge_train.progress import Progress
from edge_train.trainer import StopReason, Trainer

CASES = [
    "conv_nobn",
    "mlp_MSELoss",
    "mlp_BCEWithLogitsLoss",
    "transformer_decomposedLN_erf",
    "unet_concat_residual",
]


def _rows(case: Case, count: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """``count`` rows like those of the golden batch, the rows first."""
    feed = dict(case.feed)
    if case.name.startswith("lstm"):
        feed["x"] = np.moveaxis(feed["x"], 1, 0)
    made = {}
    for name, array in feed.items():
        chosen = array[rng.integers(0, len(array), count)]
        noise = rng.standard_normal(chosen.shape) if chosen.dtype.kind == "f" else 0
        made[name] = (chosen + noise).astype(chosen.dtype)
    return made


def _trained(case: Case, data: Any, **options: Any) -> np.ndarray:
    module = Module(case.training_model, CheckpointState.load_checkpoint(case.checkpoint))
    optimizer = Optimizer(case.optimizer_model, module)
    Trainer(module, optimizer, data, **{"schedule": 0.01, "seed": 3, **options}).run()
    return np.array(module.get_contiguous_parameters().numpy())


@pytest.mark.parametrize(
    "name", [CASES[0], *(pytest.param(name, marks=pytest.mark.slow) for name in CASES[1:])]
)
def test_micro_batches_give_the_weights_of_the_batch(name: str, rng: np.random.Generator) -> None:
    case = ZOO[name]
    data = _rows(case, 21, rng)
    options = {"epochs": 5, "batch_size": 11}
    whole = _trained(case, data, **options)
    for micro in (1, 4, 5):
        parts = _trained(case, data, micro_batch=micro, **options)
        np.testing.assert_allclose(parts, whole, rtol=2e-4, atol=2e-5)
    wrong = _trained(case, data, epochs=5, batch_size=5)
    assert not np.allclose(wrong, whole, rtol=2e-4, atol=2e-5)


def test_an_uneven_last_part_has_its_own_weight(rng: np.random.Generator) -> None:
    case = ZOO["mlp_MSELoss"]
    data = _rows(case, 7, rng)
    data["x"][-1] *= 20  # the row of the last part counts for itself alone
    module = Module(case.training_model, CheckpointState.load_checkpoint(case.checkpoint))
    optimizer = Optimizer(case.optimizer_model, module)
    options = {"steps": 1, "batch_size": 7, "shuffle": False}
    grads = {}
    for micro in (None, 3, 6):
        Trainer(module, optimizer, data, schedule=0.0, micro_batch=micro, **options).run()
        grads[micro] = module.arena.gradients.copy()
    np.testing.assert_allclose(grads[3], grads[None], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(grads[6], grads[None], rtol=1e-4, atol=1e-6)


def test_rows_of_a_time_major_input_are_found(rng: np.random.Generator) -> None:
    case = ZOO["lstm_only_Yh"]
    rows = _rows(case, 8, rng)
    batch: Mapping[str, np.ndarray] = {"x": np.moveaxis(rows["x"], 0, 1), "labels": rows["labels"]}
    by_rows = _trained(case, rows, steps=3, batch_size=8, shuffle=False)
    by_batches = _trained(case, Batches([batch]), epochs=3)
    assert np.array_equal(by_rows, by_batches)
    swapped = {**batch, "labels": rows["labels"][::-1].copy()}
    assert not np.array_equal(by_rows, _trained(case, Batches([swapped]), epochs=3))


@pytest.mark.slow
def test_dropout_draws_the_same_after_a_resume(tmp_path: Any, rng: np.random.Generator) -> None:
    case = ZOO["transformer_decomposedLN_erf_dropout"]
    data = _rows(case, 12, rng)
    options: dict[str, Any] = {"batch_size": 4, "micro_batch": 2}
    whole = _trained(case, data, steps=7, **options)
    for steps in (2, 5, 7):
        part = _trained(case, data, steps=steps, folder=tmp_path, **options)
    assert np.array_equal(part, whole)
    assert not np.array_equal(_trained(case, data, steps=7, **{**options, "seed": 4}), whole)


class _Poisoned:
    """Batches of 8 rows; those numbered in ``bad`` have a NaN in their last micro-batch."""

    def __init__(self, bad: set[int]) -> None:
        training, _ = digits()
        self._rows = ArrayRows((training.x, training.labels))
        self._bad = bad

    def __iter__(self) -> Any:
        for number in itertools.count():
            x, labels = self._rows.take(np.arange(8) + 8 * (number % 8))
            if number in self._bad:
                x[-1] = np.nan
            yield x, labels


def test_a_nan_in_one_part_drops_the_whole_update() -> None:
    stop = [lambda record: record.step == 4]
    made = trainer(data=_Poisoned({2, 3}), steps=5, micro_batch=4, callbacks=stop)
    made.run()
    clean = trainer(data=_Poisoned(set()), steps=2, micro_batch=4)
    clean.run()
    assert np.array_equal(made.module.arena.weights, clean.module.arena.weights)
    result = made.run()
    assert (result.steps, result.skipped) == (5, 2)
    assert made.optimizer.step_count == 3


def test_nan_after_nan_ends_the_run() -> None:
    result = trainer(data=_Poisoned(set(range(99))), steps=50, max_skipped=7).run()
    assert result.reason is StopReason.FAILED
    assert result.steps == 7
    assert "7 steps in a row" in result.detail


def test_a_run_without_one_update_has_failed() -> None:
    result = trainer(data=_Poisoned(set(range(99))), steps=5).run()
    assert (result.reason, result.steps, result.skipped) == (StopReason.FAILED, 5, 5)
    assert "5 steps in a row" in result.detail


def test_a_run_that_ends_diverged_has_failed() -> None:
    for bad, reason in (({4, 5, 6}, StopReason.COMPLETED), ({3, 4, 5, 6}, StopReason.FAILED)):
        result = trainer(data=_Poisoned(bad), steps=7).run()
        assert (result.reason, result.steps, result.skipped) == (reason, 7, len(bad))


def test_the_first_dropped_step_tells_what_its_data_holds() -> None:
    log = io.StringIO()
    result = trainer(data=_Poisoned({1, 3}), steps=5, progress=Progress(stream=log)).run()
    assert (result.reason, result.skipped) == (StopReason.COMPLETED, 2)
    (line,) = [line for line in log.getvalue().splitlines() if line.startswith("skipped")]
    assert line.startswith("skipped: step 2, its loss or a gradient is no finite number; ")
    assert line.endswith("the data of 'pixels' has 64 such")
