"""On a board of platforms/qemu, inside: what it is, that training works on it, what it needs."""

from __future__ import annotations

import json
import mmap
import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.child import MEMORY, ROOT

from edge_train import demo
from edge_train.kernels import native, select
from edge_train.kernels.dispatch import fuses_graphs

BOARD = os.environ.get("EDGE_TRAIN_BOARD", "")
TREE = os.environ.get("EDGE_TRAIN_TREE", "")
pytestmark = pytest.mark.skipif(
    not TREE, reason="runs on an emulated board: platforms/qemu/run.py starts it there"
)


def board() -> dict:
    return json.loads((ROOT / "platforms" / "qemu" / "boards" / f"{BOARD}.json").read_text())


def python(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, check=False, timeout=300
    )


def doctor() -> dict[str, dict]:
    done = python("-m", "edge_train", "doctor", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return {check["name"]: check for check in json.loads(done.stdout)["checks"]}


def test_u009_pages_are_the_boards() -> None:
    """A library laid out for 4 KiB would not load on a Raspberry Pi 5."""
    wanted = board()["page"] if TREE != "termux" else 4096
    assert wanted == mmap.PAGESIZE == os.sysconf("SC_PAGESIZE")
    assert native.load(native.library_path(), "base").loaded


def test_the_native_library_of_this_machine_is_used() -> None:
    name = {"arm64": "aarch64", "termux": "aarch64", "armhf": "armv7"}[TREE]
    assert platform.machine() in {"aarch64": ("aarch64",), "armv7": ("armv7l", "armv8l")}[name]
    path = native.library_path()
    assert path is not None
    assert path.name == f"libedge_train_{name}.so"
    assert select().name == "native"
    assert fuses_graphs()


def test_u090_the_doctor_finds_a_board_that_trains_quietly() -> None:
    found = doctor()
    assert found["training step"]["outcome"] == "PASS"
    assert found["onnxruntime"]["outcome"] == "PASS"
    if TREE == "armhf":
        assert found["machine"]["outcome"] == "WARN"  # 32 bits
        assert "already" in found["stderr"]["text"] or "Debian" in found["stderr"]["text"]
    else:
        assert "stderr" not in found
    if TREE != "termux":
        assert board()["model"] in found["board"]["text"]


def test_u099_nothing_heavy_is_needed() -> None:
    heavy = "onnx", "torch", "psutil", "sympy" if TREE != "armhf" else "torch"
    code = f"import sys, edge_train.api; print([n for n in {heavy!r} if n in sys.modules])"
    done = python("-W", "error::ImportWarning", "-c", code)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


def test_u104_a_refused_affinity_changes_nothing() -> None:
    """As in proot: the answer of sched_getaffinity is an error."""
    code = (
        "import os\n"
        "def refuse(*_): raise PermissionError(1, 'Operation not permitted')\n"
        "os.sched_getaffinity = os.sched_setaffinity = refuse\n"
        "import runpy; runpy.run_module('edge_train.doctor.step', run_name='__main__')"
    )
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
    assert "affinity" not in done.stderr
    assert json.loads(done.stdout)["after"] < json.loads(done.stdout)["before"]


@pytest.mark.skipif(BOARD != "pi4", reason="one board trains the whole network: the Raspberry Pi 4")
def test_the_digits_are_learned_from_a_nominal_checkpoint(tmp_path: Path) -> None:
    result = demo.run(tmp_path, epochs=4)
    assert result.accuracy_before < 0.2
    assert result.accuracy_after >= 0.95


def test_memory_of_training(capsys: pytest.CaptureFixture[str]) -> None:
    """Deltas only: the emulator's own memory and the code that it translates come on top."""
    code = MEMORY + (
        "import numpy, onnxruntime\n"
        "before = memory('VmRSS')\n"
        "from support.first_steps import losses\n"
        "losses()\n"
        "print(before, memory('VmHWM') - before)"
    )
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
    before, more = map(int, done.stdout.split())
    with capsys.disabled():
        print(
            f"\n{TREE} on {BOARD}: {before // 1024} MB with NumPy and onnxruntime, "
            f"the digits' training takes {more // 1024} MB more (resident, emulator's included)"
        )
    assert more < 160 * 1024


@pytest.mark.skipif(TREE != "arm64" or BOARD != "pi4", reason="Numba is in the Pi 4's tree alone")
def test_just_in_time_code_is_neon() -> None:
    """Roots and divisions of four at once; the bits are those of the library (test_steps.py)."""
    from numba import njit

    from edge_train.kernels import steps

    compiled = njit(error_model="numpy", nogil=True)(steps.adamw_mode1)
    arrays = [np.ones(64, np.float32) for _ in range(4)]
    compiled(*arrays, 64, *np.full(7, 0.5, np.float32))
    (text,) = compiled.inspect_asm().values()
    for instruction in ("fsqrt", "fdiv", "fmul"):
        assert f"{instruction}\tv" in text
        assert any(".4s" in line for line in text.splitlines() if f"\t{instruction}\t" in line)
    assert "ptrue" not in text  # SVE


@pytest.mark.skipif(TREE != "arm64" or BOARD != "pi4", reason="Numba is in the Pi 4's tree alone")
@pytest.mark.parametrize("mode", [0, 1])
def test_just_in_time_and_ahead_of_time_give_the_same_bits(
    mode: int, rng: np.random.Generator
) -> None:
    from edge_train.kernels import adamw_scalars

    arrays = [rng.standard_normal(10_007).astype(np.float32) for _ in range(4)]
    arrays[3] = np.square(arrays[3])
    others = [array.copy() for array in arrays]
    for step in range(1, 4):
        scalars = adamw_scalars(0.02, (0.9, 0.999), 1e-8, 0.01, step, mode=mode)
        select("numba").adamw(*arrays, scalars)
        select("native").adamw(*others, scalars)
    for got, expected in zip(arrays, others, strict=True):
        np.testing.assert_array_equal(got, expected)
