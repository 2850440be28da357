"""Checkpoint <-> safetensors: lossless, the official library's files, and files that lie."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.zoo import SEIZURE, ZOO, Artifacts

from edge_train.convert.safetensors import from_safetensors, to_safetensors

CASES: list[Artifacts] = [*ZOO.values(), SEIZURE]
MLP = ZOO["mlp_MSELoss"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_there_and_back_gives_the_same_bytes(case: Artifacts, tmp_path: Path) -> None:
    to_safetensors(case.checkpoint, tmp_path / "x.safetensors")
    from_safetensors(tmp_path / "x.safetensors", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == case.checkpoint.read_bytes()
