"""The goldens are complete and say what the tests expect of them."""

from __future__ import annotations

import numpy as np
import pytest
from support.zoo import DETERMINISTIC, SEIZURE, STOCHASTIC, ZOO, ZOO_MODELS


def test_names_are_partitioned() -> None:
    assert len(ZOO_MODELS) == 27
    assert set(STOCHASTIC) | set(DETERMINISTIC) == set(ZOO)


@pytest.mark.parametrize("name", ZOO_MODELS)
def test_case_is_complete(name: str) -> None:
    case = ZOO[name]
    for path in (case.training_model, case.eval_model, case.optimizer_model, case.checkpoint):
        assert path.stat().st_size > 0
    assert case.nominal_checkpoint.exists()
    assert case.model.exists()
    assert case.steps == 10
    assert case.feed
    for step in range(case.steps):
        assert set(case.grads(step)) == set(case.generate["requires_grad"])
        assert set(case.grads(step)) <= set(case.params(step))
    assert set(case.final) == set(case.params(0))
    assert np.isfinite(case.losses).all()
    assert np.isfinite(case.eval_loss)


def test_seizure_is_complete() -> None:
    assert len(SEIZURE.losses) == 20
    assert set(SEIZURE.first_grads) == set(SEIZURE.final)
    assert SEIZURE.feed["input"].shape == (4, 18, 1024)
    assert SEIZURE.checkpoint.exists()
