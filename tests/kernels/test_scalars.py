"""The scalars of a step: one value of beta, bias corrections in double, the artifact's rounding."""

from __future__ import annotations

import numpy as np
import pytest

from edge_train.kernels import adamw_scalars, bias_correction


def test_one_minus_beta_comes_from_the_same_beta() -> None:
    users = adamw_scalars(1e-3, (0.9, 0.999), 1e-6, 0.0, 1)
    assert users.rest2 == np.float32(0.001)
    artifacts = adamw_scalars(
        1e-3, (float(np.float32(0.9)), float(np.float32(0.999))), 1e-6, 0.0, 1
    )
    assert artifacts.rest2 == np.float32(1.0) - np.float32(0.999)
    assert users.rest2 != artifacts.rest2
    assert users.beta2 == artifacts.beta2


@pytest.mark.parametrize("step", [1, 2, 10, 1000, 10**6])
def test_bias_correction_of_a_users_beta_is_double(step: int) -> None:
    assert bias_correction(0.999, step) == np.float32(1 - 0.999**step)


def test_bias_correction_of_an_artifacts_beta_rounds_the_power_like_the_reference() -> None:
    beta = float(np.float32(0.999))
    assert bias_correction(beta, 2) == np.float32(1) - np.float32(beta**2)
    assert bias_correction(beta, 2) != np.float32(1 - beta**2)


def test_bias_correction_is_never_zero() -> None:
    for beta in (0.0, 1 - 2**-24, 1 - 2**-53):
        assert bias_correction(beta, 1) > 0


def test_mode_0_keeps_the_rate_and_mode_1_folds_the_corrections_in() -> None:
    plain = adamw_scalars(0.5, (0.5, 0.75), 1e-6, 0.25, 1, mode=0)
    assert (plain.rate, plain.decay, plain.correction1, plain.correction2) == (
        0.5,
        0.125,
        0.5,
        0.25,
    )
    folded = adamw_scalars(0.5, (0.5, 0.75), 1e-6, 0.25, 1)
    assert folded.rate == 0.5
    assert adamw_scalars(0.5, (0.5, 0.75), 1e-6, 0.0, 1, correct_bias=False).correction1 == 1.0
