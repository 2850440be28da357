"""docs/operators.md is what the tables of rules say."""

from __future__ import annotations

import pytest

from edge_train.graph.gradients import RULES
from tools import make_operators


def test_the_page_is_up_to_date() -> None:
    assert make_operators.PAGE.read_text() == make_operators.page(), (
        "run .venv/bin/python tools/make_operators.py"
    )


def test_a_new_rule_changes_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    before = make_operators.page()
    monkeypatch.setitem(RULES, ("", "Invented"), RULES["", "Relu"])
    assert before != make_operators.page()
