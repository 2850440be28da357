"""The fuzzer's corpus once more (tools/fuzz.py): no foreign error, memory bounded."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.fuzz_targets import MEMORY_FLOOR, TARGETS, within_memory

CORPUS = Path(__file__).parent / "corpus"


@pytest.mark.parametrize("target", list(TARGETS))
def test_corpus(target: str) -> None:
    files = sorted((CORPUS / target).iterdir())
    accepted = [within_memory(TARGETS[target], path.read_bytes()) for path in files]
    assert len(files) > 20
    assert set(accepted) == {True, False}


@pytest.mark.parametrize("target", list(TARGETS))
def test_findings_are_mended(target: str) -> None:
    """Inputs that once escaped: each is read or refused now."""
    for path in sorted((CORPUS / "findings").glob(f"{target}-*")):
        assert within_memory(TARGETS[target], path.read_bytes()) in (True, False), path.name


def test_memory_is_measured() -> None:
    def hungry(data: bytes) -> bool:
        return bool(bytearray(MEMORY_FLOOR + 4 * len(data) + 100_000))

    with pytest.raises(MemoryError, match="bytes taken for 3 bytes"):
        within_memory(hungry, b"abc")
