"""Every lowering rule against its rows: formulas in float64, sizes declared and as symbols."""

from __future__ import annotations

from collections import Counter

import pytest
from support.lowering import check, nudged, run_lowered
from support.rows.tables import ROWS, SMOKE, row_of

from edge_train.graph.lowering import RULES

#: rules without a row: the accumulator computes nothing (test_driver.py)
NO_ROW = {("com.microsoft", "InPlaceAccumulatorV2")}

EVERY = [
    pytest.param(name, marks=[] if name in SMOKE else pytest.mark.slow, id=name) for name in ROWS
]


@pytest.mark.parametrize("dynamic", [False, True], ids=["sizes", "symbols"])
@pytest.mark.parametrize("name", EVERY)
def test_row(name: str, dynamic: bool) -> None:
    row = row_of(name)
    check(row, run_lowered(row, dynamic))


@pytest.mark.parametrize("name", SMOKE)
def test_row_can_fail(name: str) -> None:
    row = row_of(name)
    got = run_lowered(row)
    with pytest.raises(AssertionError):
        check(nudged(row), got)


def test_every_rule_has_rows() -> None:
    rows = Counter(op for name in ROWS for op in row_of(name).ops)
    missing = set(RULES) - set(rows) - NO_ROW
    assert not missing, f"no row in tests/support/rows for {sorted(missing)}"


def test_every_op_has_a_smoke_row() -> None:
    smoke = {op for name in SMOKE for op in row_of(name).ops}
    assert not set(RULES) - smoke - NO_ROW
