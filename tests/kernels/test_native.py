"""The native library: loading through cffi and ctypes, and what happens where there is none."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from edge_train import kernels
from edge_train.errors import NativeError
from edge_train.kernels import native


@pytest.fixture
def library() -> Path:
    path = native.library_path()
    if path is None:
        pytest.skip("no native library: tools/build_kernels.py makes it")
    return path


@pytest.mark.parametrize("variant", ["base", "best"])
@pytest.mark.parametrize("without_cffi", [False, True])
def test_every_way_to_load_gives_the_same_bits(
    library: Path, variant: str, without_cffi: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if without_cffi:
        monkeypatch.setitem(sys.modules, "cffi", None)
    else:
        pytest.importorskip("cffi", reason="cffi is not installed: ctypes alone is tested")
    loaded = native.load(library, native._variant() if variant == "best" else variant)
    # a library of ctypes has a handle, one of cffi has none
    assert hasattr(loaded.loaded, "_handle") == without_cffi
    steps = native.steps_of(loaded, "native")
    arrays = [np.linspace(-2.0, 3.0, 1003, dtype=np.float32) for _ in range(4)]
    arrays[3] = np.abs(arrays[3])
    expected = [array.copy() for array in arrays]
    for mode in (0, 1):
        scalars = kernels.adamw_scalars(0.02, (0.9, 0.999), 1e-6, 0.1, 3, mode=mode)
        steps.adamw(*arrays, scalars)
        kernels.select("reference").adamw(*expected, scalars)
    for got, wanted in zip(arrays, expected, strict=True):
        np.testing.assert_array_equal(got, wanted)
    assert steps.all_finite(arrays[0])
    arrays[0][17] = np.nan
    assert not steps.all_finite(arrays[0])


def test_no_library_for_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "FOLDER", tmp_path)
    native.build.cache_clear()
    with pytest.raises(NativeError, match="build_kernels"):
        kernels.select("native")
    assert kernels.select("auto").name == "numpy"


@pytest.mark.parametrize(
    ("machine", "wide", "name"),
    [
        ("x86_64", True, "x86_64"),
        ("aarch64", True, "aarch64"),
        ("aarch64", False, "armv7"),
        ("armv7l", False, "armv7"),
        ("armv8l", False, "armv7"),
        ("riscv64", True, None),
    ],
)
def test_the_file_follows_machine_and_pointer_size(
    machine: str, wide: bool, name: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for known in ("x86_64", "aarch64", "armv7"):
        (tmp_path / f"libedge_train_{known}.so").touch()
    monkeypatch.setattr(native, "FOLDER", tmp_path)
    monkeypatch.setattr(native.platform, "machine", lambda: machine)
    monkeypatch.setattr(native.struct, "calcsize", lambda _: 8 if wide else 4)
    path = native.library_path()
    assert (path and path.name) == (name and f"libedge_train_{name}.so")


@pytest.mark.slow
def test_two_builds_are_the_same_bytes_without_an_open_symbol(tmp_path: Path) -> None:
    pytest.importorskip("llvmlite", reason="llvmlite is not installed: nothing can be built")
    tool = Path(__file__).parents[2] / "tools" / "build_kernels.py"
    machine = {"arm64": "aarch64"}.get(platform.machine(), platform.machine())
    for name in ("first", "second"):
        out = tmp_path / name
        command = [sys.executable, str(tool), machine, "--out", str(out)]
        subprocess.run(command, check=True, timeout=120)
    files = sorted((tmp_path / "first").iterdir())
    if not files:
        pytest.skip("no linker of binutils is installed: nothing can be built")
    for file in files:
        data = file.read_bytes()
        assert data == (tmp_path / "second" / file.name).read_bytes()
        assert b"libc.so" not in data
        assert b"numba" not in data.lower()


@pytest.mark.parametrize("content", [b"", b"no library at all", b"\x7fELF" + bytes(60)])
@pytest.mark.parametrize("without_cffi", [False, True])
def test_a_broken_library_is_an_error_of_ours(
    content: bytes, without_cffi: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if without_cffi:
        monkeypatch.setitem(sys.modules, "cffi", None)
    (tmp_path / "broken.so").write_bytes(content)
    with pytest.raises(NativeError, match=r"broken\.so"):
        native.load(tmp_path / "broken.so", "base")


def test_the_processor_decides_the_variant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native.platform, "machine", lambda: "x86_64")
    info = tmp_path / "cpuinfo"
    monkeypatch.setattr(native, "CPUINFO", info)
    assert native._variant() == "base"
    info.write_text("flags\t\t: fpu sse2 avx avx2\n")
    assert native._variant() == "base"
    info.write_text("flags\t\t: avx2 fma bmi1 bmi2 f16c movbe abm\n")
    assert native._variant() == "avx2"
