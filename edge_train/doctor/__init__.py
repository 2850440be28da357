"""Examines a machine: can it train, and what would people need to know about it in a bug report.

Imports nothing but the standard library: it has to work where NumPy or onnxruntime is missing or
ends the process. Those are tried in child processes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from edge_train.doctor import cpu, packages, places, system, trial
from edge_train.doctor.check import Check, Outcome
from edge_train.doctor.host import Host

__all__ = ["Check", "Host", "Outcome", "examine", "failed"]

#: the groups of checks in the order of the report
_GROUPS = (
    ("machine", system.checks),
    ("processor", cpu.checks),
    ("packages", packages.checks),
    ("places", places.checks),
    ("training", trial.checks),
)


def examine(host: Host) -> Iterator[tuple[str, Check]]:
    """Every check with the name of its group, as soon as it is done."""
    for group, checks in _GROUPS:
        for check in checks(host):
            yield group, check


def failed(checks: Iterable[Check]) -> bool:
    """Whether training cannot work here."""
    return any(check.outcome is Outcome.FAIL for check in checks)
