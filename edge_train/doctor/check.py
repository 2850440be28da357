"""One finding of the doctor."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Outcome(enum.Enum):
    """INFO is a fact, WARN works with a drawback, FAIL does not work."""

    PASS = "PASS"
    INFO = "INFO"
    WARN = "WARN"
    FAIL = "FAIL"


@dataclass(frozen=True)
class Check:
    """``name`` was looked at, ``text`` was found, ``remedy`` says what to do about it."""

    name: str
    outcome: Outcome
    text: str
    remedy: str = ""


def info(name: str, text: str) -> Check:
    """A fact."""
    return Check(name, Outcome.INFO, text)


def good(name: str, text: str) -> Check:
    """It works."""
    return Check(name, Outcome.PASS, text)


def warn(name: str, text: str, remedy: str = "") -> Check:
    """It works, with a drawback."""
    return Check(name, Outcome.WARN, text, remedy)


def bad(name: str, text: str, remedy: str) -> Check:
    """It does not work."""
    return Check(name, Outcome.FAIL, text, remedy)
