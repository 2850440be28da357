"""The native backend: steps.py compiled ahead of time, loaded through cffi, or ctypes without it.

The library has no dependency of its own, so one file serves glibc, musl and Android. It is chosen
by machine, pointer size and instruction set; where none fits, ``build`` says so and NumPy does the
work. Built by tools/build_kernels.py.
"""

from __future__ import annotations

import os
import platform
import struct
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from threading import Lock
from types import SimpleNamespace
from typing import Any
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from edge_train.errors import NativeError
from edge_train.kernels.contract import (
    AdamW8Scalars,
    AdamWScalars,
    LionScalars,
    MomentumScalars,
    Steps,
    round32,
)
from edge_train.kernels.packed import BLOCK, TABLE, Floats, Packed

#: EDGE_TRAIN_NATIVE names another folder: a library built for this very processor, or for tests
FOLDER = Path(
    os.environ.get("EDGE_TRAIN_NATIVE") or Path(__file__).parents[1] / "native"
).absolute()
CPUINFO = Path("/proc/cpuinfo")

# what x86-64-v3 stands for, in the words of /proc/cpuinfo
_AVX2_FLAGS = {"avx2", "fma", "bmi1", "bmi2", "f16c", "movbe", "abm"}
_ARGUMENTS = {
    "adamw_mode0": "ppppn" + "f" * 9,
    "adamw_mode1": "ppppn" + "f" * 7,
    "adamw8": "p" * 10 + "nnn" + "f" * 8 + "n",
    "sgd": "ppnf",
    "momentum": "pppn" + "f" * 4,
    "lion": "pppn" + "f" * 6,
    "scale": "pnf",
    "accumulate": "ppn",
    "flush": "pnf",
    "all_finite": "pn",
    "squares": "pn",
}
_RESULTS = {"all_finite": "int", "squares": "double"}


def library_path() -> Path | None:
    """The library for this process, None where there is none for its machine."""
    machine = platform.machine().lower()
    wide = struct.calcsize("P") == 8
    name = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}
    # a 64-bit kernel says aarch64 to a 32-bit Python too
    narrow = "armv7" if machine.startswith(("armv7", "armv8", "aarch64")) else None
    chosen = name.get(machine) if wide else narrow
    path = FOLDER / f"libedge_train_{chosen}.so"
    return path if chosen and path.is_file() else None


def _variant() -> str:
    """The best instruction set of the library that this processor has."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return "base"
    try:
        text = CPUINFO.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "base"
    flags = next((line for line in text.splitlines() if line.startswith("flags")), "")
    return "avx2" if set(flags.split()) >= _AVX2_FLAGS else "base"


def _through_cffi(path: Path, variant: str) -> Any:
    from cffi import FFI

    words = {"p": "void *", "n": "int64_t", "f": "float"}
    ffi = FFI()
    for name, kinds in _ARGUMENTS.items():
        arguments = ", ".join(words[kind] for kind in kinds)
        ffi.cdef(f"{_RESULTS.get(name, 'void')} et_{variant}_{name}({arguments});")
    library = ffi.dlopen(str(path))
    functions = {name: getattr(library, f"et_{variant}_{name}") for name in _ARGUMENTS}
    # from_buffer takes a fifth of the time that an array needs to tell its address
    return SimpleNamespace(**functions, pointer=ffi.from_buffer, loaded=library)


def _through_ctypes(path: Path, variant: str) -> Any:
    import ctypes

    words = {"p": ctypes.c_void_p, "n": ctypes.c_int64, "f": ctypes.c_float}
    results = {"int": ctypes.c_int, "double": ctypes.c_double}
    library = ctypes.CDLL(str(path))
    functions = {}
    for name, kinds in _ARGUMENTS.items():
        function = getattr(library, f"et_{variant}_{name}")
        function.argtypes = [words[kind] for kind in kinds]
        function.restype = results.get(_RESULTS.get(name, ""))
        functions[name] = function
    return SimpleNamespace(**functions, pointer=lambda array: array.ctypes.data, loaded=library)


def load(path: Path, variant: str) -> Any:
    """The kernels of a library as callables; NativeError where it cannot be loaded."""
    try:
        try:
            return _through_cffi(path, variant)
        except ImportError:
            return _through_ctypes(path, variant)
    except (OSError, AttributeError) as error:
        raise NativeError(
            f"the native library {path} cannot be used: {error}; build it again with "
            "tools/build_kernels.py, or set EDGE_TRAIN_KERNELS=numpy"
        ) from error


#: session options that know the custom ops already: a second registration is refused
_REGISTERED: WeakSet[Any] = WeakSet()
_REGISTERING = Lock()


def has_ops() -> bool:
    """Whether this machine's library is there, and with it the fused ops of domain edge_train."""
    return library_path() is not None


def register_ops(options: Any) -> None:
    """Makes the fused ops known to sessions of ``options``, an onnxruntime.SessionOptions.

    Errors: NativeError where there is no library for this machine or onnxruntime refuses it.
    """
    path = library_path()
    if path is None:
        raise NativeError(missing())
    with _REGISTERING:
        if options in _REGISTERED:
            return
        try:
            options.register_custom_ops_library(str(path))
        except Exception as error:
            raise NativeError(
                f"onnxruntime cannot use the native library {path}: {error}; build it again with "
                "tools/build_kernels.py, or pass kernels='portable' to Module"
            ) from error
        _REGISTERED.add(options)


def missing() -> str:
    """What to say where this machine has no library."""
    return (
        f"no native library for {platform.machine()} with {8 * struct.calcsize('P')}-bit "
        f"pointers in {FOLDER}; build it with tools/build_kernels.py, or set "
        "EDGE_TRAIN_KERNELS=numpy"
    )


@lru_cache(maxsize=1)
def build() -> Steps:
    """The native backend; NativeError where there is no library for this machine."""
    path = library_path()
    if path is None:
        raise NativeError(missing())
    return steps_of(load(path, _variant()), "native")


def steps_of(kernels: Any, name: str) -> Steps:
    """The Steps record over loaded kernels."""
    at: Callable[[NDArray[Any]], Any] = kernels.pointer

    def adamw(p: Floats, g: Floats, m: Floats, v: Floats, s: AdamWScalars) -> None:
        numbers = s.numbers
        if s.mode == 0:
            kernels.adamw_mode0(at(p), at(g), at(m), at(v), p.size, *numbers)
        else:
            kernels.adamw_mode1(at(p), at(g), at(m), at(v), p.size, *numbers[:7])

    def adamw8(p: Floats, g: Floats, q: Packed, part: slice, s: AdamW8Scalars) -> None:
        numbers = (s.beta1, s.rest1, s.beta2, s.rest2, s.eps, s.rate, s.before, s.after)
        arrays = (p, g, q.ratio, q.root, q.ratio_max, q.root_max, q.bounds)
        scratch = np.empty((2, BLOCK), np.float32)
        places = [at(array) for array in (*arrays, scratch[0], scratch[1], TABLE)]
        kernels.adamw8(*places, part.start, *q.blocks(part), *numbers, s.seed)

    def sgd(weights: Floats, gradients: Floats, lr: float) -> None:
        kernels.sgd(at(weights), at(gradients), weights.size, round32(lr))

    def momentum(p: Floats, g: Floats, m: Floats, s: MomentumScalars) -> None:
        kernels.momentum(at(p), at(g), at(m), p.size, s.mu, s.lr, s.decay, s.nesterov)

    def lion(p: Floats, g: Floats, m: Floats, s: LionScalars) -> None:
        numbers = (s.beta1, s.rest1, s.beta2, s.rest2, s.lr, s.decay)
        kernels.lion(at(p), at(g), at(m), p.size, *numbers)

    def squares(gradients: Floats) -> float:
        return float(kernels.squares(at(gradients), gradients.size))

    def scale(gradients: Floats, factor: float) -> None:
        kernels.scale(at(gradients), gradients.size, round32(factor))

    def accumulate(buffer: Floats, value: Floats) -> None:
        kernels.accumulate(at(buffer), at(value), buffer.size)

    def flush(array: Floats, tiny: float) -> None:
        kernels.flush(at(array), array.size, tiny)

    def all_finite(array: Floats) -> bool:
        return bool(kernels.all_finite(at(array), array.size))

    return Steps(
        name, adamw, adamw8, sgd, momentum, lion, squares, scale, accumulate, flush, all_finite
    )
