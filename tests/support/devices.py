"""Devices for tests: with the native library (built here where there is a compiler) and without."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path

import pytest

from edge_train.device import Device, native, open_device
from edge_train.device.native import Api
from edge_train.errors import NativeError
from edge_train.kernels.native import library_path

NATIVE = Path(__file__).parents[2] / "native"
SOURCES = ("device.c", "device_opencl.c", "memory.c")
FLAGS = ("-std=gnu11", "-O2", "-ffreestanding", "-fPIC", "-fvisibility=hidden", "-nostdlib")
STRICT = (
    "-Wall",
    "-Wextra",
    "-Werror",
    "-fno-stack-protector",
    "-fno-tree-loop-distribute-patterns",
)


def compiled(folder: Path, *more: str) -> Path:
    """The device sources alone as a shared library; skips without a compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here, and no native library that knows device memory")
    library = folder / "libdevice.so"
    sources = [str(NATIVE / name) for name in SOURCES]
    command = [compiler, *FLAGS, *STRICT, *more, "-shared", *sources, "-o", str(library)]
    subprocess.run(command, check=True)
    return library


@lru_cache(maxsize=1)
def native_api() -> Api:
    """The native library's device memory."""
    present = native._default()
    if present is None:
        folder = Path(tempfile.mkdtemp(prefix="edge-train-tests-"))
        try:
            present = native.load(compiled(folder))
        finally:
            shutil.rmtree(folder)
    assert present is not None
    return present


@lru_cache(maxsize=1)
def ctypes_api() -> Api:
    """The same library bound by ctypes, as where cffi cannot be had."""
    path = library_path()
    if path is None:
        pytest.skip("no native library for this machine: build it with tools/build_kernels.py")
    functions, loaded = native._through_ctypes(path)
    if not functions:
        pytest.skip("the native library here is older than device memory; build it again")
    api = Api(functions, loaded)
    addresses = native._system()
    assert addresses is not None
    assert api.device_init(addresses.ctypes.data, addresses.size) == 0
    return api


def use_native(monkeypatch: pytest.MonkeyPatch, wanted: bool) -> None:
    """Lets ``open_device`` find the native library, or none."""
    api = native_api() if wanted else None
    monkeypatch.setattr(native, "library", lambda: api)


def opencl(**options: bool) -> Device:
    """The first OpenCL device; skips where there is none."""
    try:
        return open_device("opencl:0", **options)
    except NativeError as error:
        pytest.skip(f"no OpenCL here: {error}")
