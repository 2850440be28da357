"""Every lowering rule against its rows: formulas in float64, sizes declared and as symbols."""

from __future__ import annotations

import numpy as np
import pytest
from support.lowering import check, in_kind, nudged, run_lowered
from support.rows.tables import ROWS, SMOKE, row_of

from edge_train.graph.lowering import RULES

#: rules without a row: the accumulator computes nothing (test_driver.py)
NO_ROW = {("com.microsoft", "InPlaceAccumulatorV2")}

EVERY = [
    pytest.param(name, marks=[] if name in SMOKE else pytest.mark.slow, id=name) for name in ROWS
]
#: two ops: what the first makes is rounded before the second takes a difference of it
ROUNDED_BETWEEN = {"SoftmaxDropoutGrad: behind its op"}


@pytest.mark.parametrize("dynamic", [False, True], ids=["sizes", "symbols"])
@pytest.mark.parametrize("name", EVERY)
def test_row(name: str, dynamic: bool) -> None:
    row = row_of(name)
    check(row, run_lowered(row, dynamic))


@pytest.mark.parametrize("name", EVERY)
def test_row_in_double(name: str) -> None:
    row = in_kind(row_of(name), np.float64)
    got = run_lowered(row, dynamic=True)
    check(row, got)
    assert not {np.dtype(np.float32)} & {value.dtype for value in got.values()}


@pytest.mark.parametrize("name", [row for row in EVERY if row.id not in ROUNDED_BETWEEN])
def test_row_in_half_precision(name: str) -> None:
    """float16 gives what float32 gives for the same numbers, rounded."""
    half = in_kind(row_of(name), np.float16)
    got, wide = (
        run_lowered(half, dynamic=True),
        run_lowered(in_kind(half, np.float32), dynamic=True),
    )
    for output, value in got.items():
        if wide[output].dtype == np.float32:
            assert value.dtype == np.float16
            with np.errstate(over="ignore"):
                expected = wide[output].astype(np.float16)
            np.testing.assert_allclose(value, expected, rtol=2e-3, atol=1e-6)
        else:
            np.testing.assert_array_equal(value, wide[output])


@pytest.mark.parametrize("name", SMOKE)
def test_row_can_fail(name: str) -> None:
    row = row_of(name)
    got = run_lowered(row)
    with pytest.raises(AssertionError):
        check(nudged(row), got)


def test_every_op_has_a_smoke_row() -> None:
    smoke = {op for name in SMOKE for op in row_of(name).ops}
    assert not set(RULES) - smoke - NO_ROW
