"""Which backend runs: the environment variable, its wrong values, a missing Numba."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from edge_train import kernels
from edge_train.kernels import dispatch, jit, native


@pytest.mark.parametrize("value", [None, "", "auto"])
@pytest.mark.parametrize(("there", "name"), [(False, "numpy"), (True, "native")])
def test_the_default_is_the_native_library_or_numpy(
    value: str | None, there: bool, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EDGE_TRAIN_KERNELS", raising=False)
    if value is not None:
        monkeypatch.setenv("EDGE_TRAIN_KERNELS", value)
    monkeypatch.setattr(native, "library_path", lambda: Path("library") if there else None)
    monkeypatch.setattr(native, "build", lambda: SimpleNamespace(name="native"))
    assert kernels.select().name == name


def test_u096_without_library_and_numba_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("EDGE_TRAIN_KERNELS", raising=False)
    monkeypatch.setattr(native, "library_path", lambda: None)
    monkeypatch.setitem(sys.modules, "numba", None)
    dispatch._tell_once.cache_clear()
    with caplog.at_level(logging.INFO, "edge_train"):
        steps = [kernels.select() for _ in range(3)]
    (line,) = caplog.messages
    assert "no native library for" in line
    assert "with the same numbers" in line
    weights, expected = (np.arange(9, dtype=np.float32) for _ in range(2))
    gradients = np.linspace(-1, 1, 9, dtype=np.float32)
    steps[0].sgd(weights, gradients, 0.1)
    kernels.select("reference").sgd(expected, gradients, 0.1)
    np.testing.assert_array_equal(weights, expected)


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("numpy", "numpy"),
        pytest.param("numba", "numba", marks=pytest.mark.slow),
        ("reference", "reference"),
    ],
)
def test_the_variable_chooses(value: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if value == "numba":
        pytest.importorskip("numba", reason="Numba is not installed: its backend is not tested")
    monkeypatch.setenv("EDGE_TRAIN_KERNELS", value)
    assert kernels.select().name == name


def test_an_unknown_value_is_refused_with_the_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGE_TRAIN_KERNELS", "cuda")
    with pytest.raises(ValueError, match=r"'cuda'.*auto, native, numpy, numba, reference"):
        kernels.select()


def test_a_missing_numba_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    jit.build.cache_clear()
    with pytest.raises(ImportError, match=r"pip install 'edge-train\[numba\]'"):
        kernels.select("numba")
    jit.build.cache_clear()


def test_importing_the_kernels_does_not_import_numba() -> None:
    code = "import sys, edge_train.kernels as k; k.select('auto'); sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_two_numpy_backends_share_no_scratch() -> None:
    assert kernels.select("numpy").adamw.__self__ is not kernels.select("numpy").adamw.__self__
