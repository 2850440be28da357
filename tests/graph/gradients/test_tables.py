"""Every gradient rule against its rows: central differences in float64, sizes declared and as
symbols, and the same graph in double and half precision."""

from __future__ import annotations

import numpy as np
import pytest
from support.gradient_rows.tables import ROWS, SMOKE, answers
from support.gradients import check_slopes, forward_model, nudged, run_gradients, single
from support.lowering import session

from edge_train import dtypes
from edge_train.graph.gradients import RULES
from edge_train.graph.lowering import lower
from edge_train.graph.precision import with_floats

EVERY = [
    pytest.param(name, marks=[] if name in SMOKE else pytest.mark.slow, id=name) for name in ROWS
]


@pytest.mark.parametrize("name", EVERY)
def test_row_with_sizes(name: str) -> None:
    row, (weights, slopes) = ROWS[name], answers(name)
    check_slopes(row, run_gradients(row, weights), slopes)


@pytest.mark.parametrize("name", [p for p in EVERY if ROWS[str(p.id)].symbols])
def test_row_with_symbols(name: str) -> None:
    row, (weights, slopes) = ROWS[name], answers(name)
    check_slopes(row, run_gradients(row, weights, dynamic=True), slopes)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "tolerance"), [(dtypes.DOUBLE, 0.0), (dtypes.FLOAT16, 0.03)])
@pytest.mark.parametrize("name", ROWS)
def test_row_in_other_floats(name: str, kind: int, tolerance: float) -> None:
    """Wherever stock onnxruntime runs the forward nodes in a type, the gradient runs in it too."""
    row, (weights, slopes) = ROWS[name], answers(name)
    try:
        session(lower(with_floats(forward_model(row), kind)).model)
    except Exception as error:
        pytest.skip(f"onnxruntime has no {dtypes.name_of(kind)} kernel: {str(error)[:120]}")
    got = run_gradients(row, weights, kind=kind)
    assert {value.dtype for value in got.values()} == {dtypes.NUMPY[kind]}
    check_slopes(row, got, slopes, tolerance and max(tolerance, 30 * row.tolerance))


@pytest.mark.parametrize("name", SMOKE)
def test_row_can_fail(name: str) -> None:
    row, (weights, slopes) = ROWS[name], answers(name)
    got = run_gradients(row, weights)
    for wanted, value in nudged(row, slopes).items():
        with pytest.raises(AssertionError):
            check_slopes(row, got, {wanted: value})


def test_a_wrong_rule_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RULES, ("", "Tanh"), RULES["", "Sigmoid"])
    row = single("Tanh", {"x": np.array([0.5, -1.0], np.float32)})
    with pytest.raises(AssertionError, match="of its norm away"):
        check_slopes(row, run_gradients(row, {"y": np.ones(2)}), {"x": 1 - np.tanh([0.5, -1]) ** 2})


def test_every_rule_has_a_smoke_row() -> None:
    smoke = {op for name in SMOKE for op in ROWS[name].ops}
    missing = set(RULES) - smoke
    assert not missing, f"no smoke row in tests/support/gradient_rows for {sorted(missing)}"
