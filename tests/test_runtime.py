"""onnxruntime is imported quietly; where it is not there, one line says how to get it."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.child import ROOT, run_python, succeed
from support.machine import write_tree

from edge_train import runtime

PHONE = "TERMUX_VERSION"


@pytest.mark.parametrize(
    ("system", "termux", "bits", "words"),
    [
        ("linux", False, 64, "pip install 'onnxruntime"),
        ("linux", False, 32, "python3-onnxruntime"),
        ("linux", True, 64, "pkg install python-onnxruntime"),
        ("android", False, 32, "pkg install python-onnxruntime"),
    ],
)
def test_each_machine_has_its_route(system: str, termux: bool, bits: int, words: str) -> None:
    assert words in runtime.route(system, termux, bits)


@pytest.mark.parametrize(
    "code",
    [
        "raise ModuleNotFoundError('no onnxruntime')",
        pytest.param("raise ImportError('for Python 3.12')", marks=pytest.mark.slow),
    ],
)
def test_u091_u100_a_failing_import_names_the_route(code: str, tmp_path: Path) -> None:
    write_tree(tmp_path, {"onnxruntime/__init__.py": code})
    done = run_python(
        "from edge_train.cli import main; import sys; sys.exit(main(['demo']))",
        env={"PYTHONPATH": f"{tmp_path}:{ROOT}", PHONE: "0.119"},
    )
    assert done.returncode == 2
    lines = done.stderr.splitlines()
    assert len(lines) == 1
    assert code.split("'")[1] in lines[0]
    assert "pkg install python-onnxruntime" in lines[0]


def test_u100_the_warning_of_an_unsupported_platform_is_not_passed_on(tmp_path: Path) -> None:
    warn = "import warnings; warnings.warn('Unsupported platform (android).', UserWarning)"
    write_tree(tmp_path, {"onnxruntime/__init__.py": warn})
    env = {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    assert succeed(run_python("import edge_train.runtime", env=env)) == ""
    done = run_python("import onnxruntime", env=env)
    assert "Unsupported platform" in done.stderr
