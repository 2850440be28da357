"""Einsum equations spelled out."""

from __future__ import annotations

import pytest

from edge_train.graph.equations import explicit_terms


@pytest.mark.parametrize(
    ("equation", "ranks", "terms", "result"),
    [
        ("ij,jk->ik", (2, 2), ["ij", "jk"], "ik"),
        (" i j , j k -> i k ", (2, 2), ["ij", "jk"], "ik"),
        ("ij,jk", (2, 2), ["ij", "jk"], "ik"),
        ("ba", (2,), ["ba"], "ab"),
        ("ii", (2,), ["ii"], ""),
        ("...ij,jk->...ik", (4, 2), ["abij", "jk"], "abik"),
        ("...c,...", (3, 1), ["abc", "b"], "abc"),
        ("...->...", (0,), [""], ""),
    ],
)
def test_spelled_out(equation: str, ranks: tuple[int, ...], terms: list[str], result: str) -> None:
    got, end = explicit_terms(equation, ranks)
    letters = dict.fromkeys("".join(got))
    assert [len(term) for term in got] == [len(term) for term in terms]
    if "..." in equation:
        table = str.maketrans(dict(zip("".join(got), "".join(terms), strict=True)))
        got, end = [term.translate(table) for term in got], end.translate(table)
    assert (got, end) == (terms, result)
    assert len(letters) == len(set("".join(terms)))


@pytest.mark.parametrize(
    ("equation", "ranks"), [("ij->i", (3,)), ("ij,jk", (2,)), ("...ijk", (2,))]
)
def test_ranks_that_do_not_fit(equation: str, ranks: tuple[int, ...]) -> None:
    with pytest.raises(ValueError):
        explicit_terms(equation, ranks)
