"""The reference process, one for a test session (for each worker: run this lane with -n 0 to 2)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.reference import Reference, reference_python


@pytest.fixture(scope="session")
def reference() -> Iterator[Reference]:
    python = reference_python()
    if python is None:
        pytest.skip("no reference venv: make parity builds it")
    process = Reference(python)
    yield process
    process.close()


@pytest.fixture(autouse=True)
def _reference_alive(request: pytest.FixtureRequest) -> None:
    # A crash of the reference fails the test that caused it, not the ones after it.
    if "reference" in request.fixturenames:
        request.getfixturevalue("reference").ensure_running()
