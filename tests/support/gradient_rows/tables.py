"""Every gradient row by name: those of each module of this folder with a list ROWS."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pathlib import Path

from support.gradients import Array, Row, expected_slopes, weights_of

_FAMILIES = sorted(path.stem for path in Path(__file__).parent.glob("*.py"))
_EVERY: list[Row] = [
    row
    for family in _FAMILIES
    if family != "tables"
    for row in import_module(f"support.gradient_rows.{family}").ROWS
]

ROWS: dict[str, Row] = {row.name: row for row in _EVERY}
if len(ROWS) < len(_EVERY):
    raise ValueError("two gradient rows of one name")
SMOKE = [name for name in ROWS if ":" not in name]


@cache
def answers(name: str) -> tuple[dict[str, Array], dict[str, Array]]:
    """(r by output, slopes by input) of a row, computed once."""
    weights = weights_of(ROWS[name])
    return weights, expected_slopes(ROWS[name], weights)
