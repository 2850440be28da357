"""The examples of docs/device-memory.md run as they stand, one after the other."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.devices import opencl, use_native
from support.snapshot import differences, snapshot
from support.zoo import ZOO

PAGE = Path(__file__).parents[1] / "docs" / "device-memory.md"
MLP = ZOO["mlp_CrossEntropyLoss"]


def test_the_examples_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_native(monkeypatch, True)
    monkeypatch.setenv("EDGE_TRAIN_SHM", str(tmp_path / "shared"))
    for source in MLP.folder.iterdir():
        if source.is_file():
            shutil.copy(source, tmp_path)
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 9
    names: dict[str, Any] = dict(MLP.feed)
    for block in blocks:
        if '"opencl:0"' in block:
            opencl()  # skips the rest where there is none
        exec(compile(block, str(PAGE), "exec"), names)
    assert np.isfinite(names["outputs"][0])
    assert names["version"] >= 1
    received, filled = snapshot(names["receiver"].state), snapshot(names["filled"].state)
    assert differences(received, filled) == []
    assert (tmp_path / "received").exists()
