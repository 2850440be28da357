"""Fixtures of every test, the folder markers, and the closing words on what was not run."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.tiers import FOLDERS, LANES
from support.zoo import SEIZURE, ZOO, Case, Seizure

ROOT = Path(__file__).parent
gc.disable()  # while 16,000 tests are collected, which live to the end: a fifth of that time
_DESELECTED = pytest.StashKey["Counter[str]"]()


@pytest.fixture(scope="session")
def zoo() -> dict[str, Case]:
    """Every model of the zoo by name."""
    return ZOO


@pytest.fixture(scope="session")
def seizure() -> Seizure:
    return SEIZURE


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20240903)


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_DESELECTED] = Counter()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        folder = item.path.relative_to(ROOT).parts[0]
        if folder in FOLDERS:
            item.add_marker(getattr(pytest.mark, folder))


def pytest_collection_finish() -> None:
    # no gc.freeze(): Hypothesis asks what refers to its generator, and frozen objects do not answer
    gc.enable()


def _lane(item: pytest.Item) -> str:
    return next((name for name in LANES if item.get_closest_marker(name)), "smoke")


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    if items:
        items[0].config.stash[_DESELECTED].update(_lane(item) for item in items)


def pytest_sessionfinish(session: pytest.Session) -> None:
    # A worker of pytest-xdist tells its controller; each worker collects the same tests.
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["deselected"] = dict(session.config.stash[_DESELECTED])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    told = getattr(node, "workeroutput", {}).get("deselected", {})
    stash = node.config.stash[_DESELECTED]
    stash.update({} if stash else told)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    left = config.stash[_DESELECTED]
    outcomes = ("passed", "failed", "error", "skipped", "xfailed")
    ran = sum(len(terminalreporter.getreports(outcome)) for outcome in outcomes)
    terminalreporter.section("what ran")
    terminalreporter.write_line(f"ran {ran} of {ran + left.total()} tests")
    for lane, count in sorted(left.items()):
        command = LANES.get(lane, "make test")
        terminalreporter.write_line(f"  {count:5d} of {lane:8s} not run here: {command}")
