"""U097: Numba writes nothing, so that packages may be read-only and processes many."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.child import ROOT

CODE = """
import numpy as np
from edge_train.kernels import select
steps = select("numba")
weights, gradients = np.ones(8, np.float32), np.full(8, 0.5, np.float32)
steps.sgd(weights, gradients, 0.5)
assert weights.tolist() == [0.75] * 8
"""


@pytest.mark.slow
def test_u097_numba_keeps_no_files(tmp_path: Path) -> None:
    """Two processes at once, with a home and a folder of their own: neither leaves a file."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": str(tmp_path),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    before = set((ROOT / "edge_train").rglob("*.nb*"))
    command = [sys.executable, "-W", "error", "-c", CODE]
    running = [
        subprocess.Popen(command, env=environment, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    told = [process.communicate(timeout=300)[1] for process in running]
    assert [process.returncode for process in running] == [0, 0], told
    assert told == ["", ""]
    assert list(tmp_path.rglob("*")) == []
    assert set((ROOT / "edge_train").rglob("*.nb*")) == before
