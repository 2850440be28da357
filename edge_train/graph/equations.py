"""Einsum equations with "..." and an omitted result spelled out."""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Sequence

_DOTS = "..."


def explicit_terms(equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """The letters of each operand and of the result; ValueError where the ranks do not fit."""
    left, arrow, result = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if not arrow:
        counts = Counter(left.replace(".", "").replace(",", ""))
        once = "".join(sorted(letter for letter, count in counts.items() if count == 1))
        result = (_DOTS if _DOTS in left else "") + once
    pairs = list(zip(terms, ranks, strict=True))
    hidden = [rank - len(term.replace(_DOTS, "")) for term, rank in pairs]
    if any(n < 0 or (n and _DOTS not in term) for n, (term, _) in zip(hidden, pairs, strict=True)):
        raise ValueError(f"equation '{equation}' does not fit operands of ranks {list(ranks)}")
    free = [letter for letter in string.ascii_letters if letter not in equation]
    dots = "".join(free[: max(hidden)])
    spelled = [
        term.replace(_DOTS, dots[len(dots) - n :])
        for (term, _), n in zip(pairs, hidden, strict=True)
    ]
    return spelled, result.replace(_DOTS, dots)
