"""U083: the same twenty steps on every machine, in float32 throughout."""

from __future__ import annotations

import numpy as np
import pytest
from support.first_steps import LOSSES, TOLERANCE, losses

from edge_train.kernels import native


def difference(found: list[float]) -> float:
    return float(np.max(np.abs(np.array(found) / np.array(LOSSES) - 1)))


@pytest.mark.parametrize("kernels", ["portable", "fused"])
def test_u083_twenty_steps_are_those_of_x86(kernels: str) -> None:
    if kernels == "fused" and not native.has_ops():
        pytest.skip("no native library: tools/build_kernels.py makes it")
    assert difference(losses(kernels)) <= TOLERANCE


def test_the_measure_sees_another_rate() -> None:
    assert difference(losses("portable", rate=0.0101)) > 10 * TOLERANCE
