"""Case U003: this package beside the training wheel 1.19.2 and its own onnxruntime."""

from __future__ import annotations

import os
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
from support.child import ROOT
from support.reference import reference_python

CODE = """
import sys
import onnxruntime
import onnxruntime.training.api
from support.training import GRADIENT, LOSS, golden_step, session_of
from support.zoo import DETERMINISTIC, ZOO

assert onnxruntime.__version__ == "1.19.2"
for name in DETERMINISTIC:
    case = ZOO[name]
    module, optimizer = session_of(case)
    loss, gradients = golden_step(case, module, 3)
    optimizer.step()
    assert loss < LOSS, (name, loss)
    assert max(gradients.values()) < GRADIENT, (name, gradients)
print(len(DETERMINISTIC))
"""


def _python() -> str:
    python = reference_python()
    if python is None:
        pytest.skip("no reference venv: make parity builds it")
    return str(python)


def test_trains_on_the_onnxruntime_of_the_training_wheel(tmp_path: Path) -> None:
    """As ``pip install --no-deps edge-train`` leaves it: our folder on the path, nothing else."""
    shutil.copytree(ROOT / "edge_train", tmp_path / "edge_train")
    paths = os.pathsep.join(map(str, (tmp_path, ROOT / "tests")))
    done = subprocess.run(
        [_python(), "-c", CODE],
        env={**os.environ, "PYTHONPATH": paths},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) > 20


def test_the_wheel_writes_into_no_other_package(tmp_path: Path) -> None:
    source = tmp_path / "source"  # a build leaves files beside what it builds
    shutil.copytree(ROOT / "edge_train", source / "edge_train")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    command = ["-m", "pip", "wheel", "-q", "--no-deps", "-w", str(tmp_path), str(source)]
    subprocess.run([_python(), *command], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.split("/")[0].split("-")[0] for name in archive.namelist()}
    assert tops == {"edge_train"}
