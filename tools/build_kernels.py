"""Builds the native library: one file per architecture, without libc, from C and from steps.py.

    .venv/bin/python tools/build_kernels.py [x86_64 aarch64 armv7] [--out edge_train/native]

native/*.c goes through GCC. edge_train/kernels/steps.py needs no C compiler: Numba types the
functions (its optimizer off), llvmlite retargets and optimizes the module. A linker of binutils
makes the shared library; ``-z defs`` proves that no symbol is left open. The files are the same
bytes at every build; they go into the wheel as data and are never committed.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ["NUMBA_OPT"] = "0"  # before Numba: its IR must not be vectorized for this machine

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

import llvmlite.binding as llvm  # noqa: E402
from native_objects import COMPILERS, FORCED, compile_sources  # noqa: E402
from numba import njit, types  # noqa: E402

from edge_train.kernels import steps  # noqa: E402

POINTER = types.CPointer(types.float32)
BITS = types.CPointer(types.int32)
CODES, BOUNDS = types.CPointer(types.uint8), types.CPointer(types.int64)
COUNT, REAL = types.int64, types.float32


@dataclass(frozen=True)
class Variant:
    """One instruction set of an architecture; its symbols begin with ``et_<name>_``."""

    name: str
    cpu: str
    features: str


@dataclass(frozen=True)
class Target:
    """An architecture: LLVM triple (four parts, so that Android's reserved x18 is respected)."""

    machine: str
    triple: str
    linkers: tuple[str, ...]
    variants: tuple[Variant, ...]

    def linker(self) -> str | None:
        """The first of the linkers that is installed; plain ld serves this machine only."""
        here = self.machine == platform.machine()
        usable = [name for name in self.linkers if here or name != "ld"]
        return next((name for name in usable if shutil.which(name)), None)


TARGETS = (
    Target(
        "x86_64",
        "x86_64-unknown-linux-gnu",
        ("x86_64-linux-gnu-ld", "ld"),
        (
            Variant("base", "x86-64", ""),
            Variant("avx2", "x86-64-v3", ""),
        ),
    ),
    Target(
        "aarch64",
        "aarch64-unknown-linux-android24",
        ("aarch64-linux-gnu-ld", "ld"),
        (Variant("base", "cortex-a53", ""),),
    ),
    Target(
        "armv7",
        "armv7-unknown-linux-gnueabihf",
        ("arm-linux-gnueabihf-ld",),
        (Variant("base", "cortex-a7", "+neon,+vfp4"),),
    ),
)

# name -> argument types, result type
SIGNATURES: dict[str, tuple[tuple[Any, ...], Any]] = {
    "adamw_mode0": ((POINTER,) * 4 + (COUNT,) + (REAL,) * 9, types.void),
    "adamw_mode1": ((POINTER,) * 4 + (COUNT,) + (REAL,) * 7, types.void),
    "adamw8": (
        (POINTER,) * 2
        + (CODES,) * 2
        + (POINTER,) * 2
        + (BOUNDS,)
        + (POINTER,) * 2
        + (BITS,)
        + (COUNT,) * 3
        + (REAL,) * 8
        + (COUNT,),
        types.void,
    ),
    "sgd": ((POINTER,) * 2 + (COUNT, REAL), types.void),
    "momentum": ((POINTER,) * 3 + (COUNT,) + (REAL,) * 4, types.void),
    "lion": ((POINTER,) * 3 + (COUNT,) + (REAL,) * 6, types.void),
    "scale": ((POINTER, COUNT, REAL), types.void),
    "accumulate": ((POINTER,) * 2 + (COUNT,), types.void),
    "flush": ((POINTER, COUNT, REAL), types.void),
    "all_finite": ((BITS, COUNT), types.boolean),
    "squares": ((POINTER, COUNT), types.float64),
}
_LLVM = {POINTER: "ptr", BITS: "ptr", CODES: "ptr", BOUNDS: "ptr", COUNT: "i64", REAL: "float"}
# the type Numba stores a result as, and how the wrapper widens it for C
_RESULTS = {
    types.void: ("ptr", "void", ""),
    types.boolean: ("i8", "i32", "  %w = zext i8 %v to i32\n"),
    types.float64: ("double", "double", ""),
}


def module_ir(name: str, reassociate: bool) -> tuple[str, str]:
    """LLVM IR of a kernel before any optimization, and the symbol Numba gave it."""
    arguments, result = SIGNATURES[name]
    compiled = njit(
        result(*arguments),
        fastmath={"reassoc"} if reassociate else False,
        error_model="numpy",
        no_cpython_wrapper=True,
        no_cfunc_wrapper=True,
    )(getattr(steps, name))
    symbol = compiled.overloads[arguments].fndesc.llvm_func_name
    return compiled.inspect_llvm(arguments), symbol


def wrapper_ir(name: str, symbol: str, variant: str) -> str:
    """``et_<variant>_<name>``: Numba's calling convention behind a plain C function."""
    arguments, result = SIGNATURES[name]
    stored, returned, widen = _RESULTS[result]
    kinds = [_LLVM[argument] for argument in arguments]
    # noalias: the arrays never overlap, and no run-time checks are compiled for it
    formal = [f"{kind}{' noalias' * (kind == 'ptr')} %a{i}" for i, kind in enumerate(kinds)]
    actual = ", ".join(f"{kind} %a{i}" for i, kind in enumerate(kinds))
    end = "  ret void\n"
    if result is not types.void:
        value = "%w" if widen else "%v"
        end = f"  %v = load {stored}, ptr %r\n{widen}  ret {returned} {value}\n"
    return (
        f"define dso_local {returned} @et_{variant}_{name}({', '.join(formal)}) {{\n"
        f"  %r = alloca {stored}\n  %e = alloca ptr\n"
        f'  %s = call i32 @"{symbol}"(ptr %r, ptr %e, {actual})\n{end}}}\n'
    )


def retargeted(ir: str, target: Target, layout: str) -> str:
    """IR for another machine; calls that LLVM would turn into libc's memset stay loops."""
    ir = re.sub(r"^target datalayout = .*$", f'target datalayout = "{layout}"', ir, flags=re.M)
    ir = re.sub(r"^target triple = .*$", f'target triple = "{target.triple}"', ir, flags=re.M)
    ir = re.sub(r'"target-(cpu|features)"="[^"]*"', "", ir)
    return re.sub(r"\bnoinline\b", "", ir)


def object_code(target: Target, variant: Variant) -> bytes:
    """All kernels of one instruction set as an object file."""
    machine = llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=variant.cpu, features=variant.features, opt=3, reloc="pic", codemodel="default"
    )
    whole: Any = None
    reductions = {function.__name__ for function in steps.REDUCTIONS}
    for name in SIGNATURES:
        ir, symbol = module_ir(name, name in reductions)
        ir = retargeted(ir, target, str(machine.target_data))
        part = llvm.parse_assembly(ir + wrapper_ir(name, symbol, variant.name))
        part.verify()
        if whole is None:
            whole = part
        else:
            whole.link_in(part)
    _hide_everything_else(whole)
    _optimize(whole, machine)
    return bytes(machine.emit_object(whole))


def _hide_everything_else(module: Any) -> None:
    """Internal linkage lets LLVM drop Numba's runtime and error paths as dead code."""
    for function in module.functions:
        if not function.is_declaration and not function.name.startswith("et_"):
            function.linkage = "internal"
    for variable in module.global_variables:
        if not variable.is_declaration:
            variable.linkage = "internal"


def _optimize(module: Any, machine: Any) -> None:
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = options.slp_vectorization = True
    options.loop_unrolling = options.loop_interleaving = True
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    module.verify()


def link(target: Target, objects: list[Path], library: Path) -> None:
    """Links without libc: no open symbol, no executable stack, both hash tables.

    ARM kernels have pages of up to 16 KiB; code and constants in one segment save the padding.
    """
    linker = target.linker()
    if linker is None:
        raise SystemExit(
            f"no linker for {target.machine}: install binutils ({' or '.join(target.linkers)})"
        )
    flags = ["-shared", "--hash-style=both", "--build-id=none", "-s", "-soname", library.name]
    for option in ("max-page-size=16384", "noseparate-code", "defs", "relro", "now", "noexecstack"):
        flags += ["-z", option]
    subprocess.run([linker, *flags, "-o", str(library), *map(str, objects)], check=True)


def link_sanitized(objects: list[Path], library: Path) -> None:
    """Links with libc and the sanitizers' runtime, for tests of the kernels on this machine."""
    flags = ["-shared", "-fsanitize=address,undefined"]
    subprocess.run(["gcc", *flags, "-o", str(library), *map(str, objects)], check=True)


def build(target: Target, folder: Path, sanitized: bool = False, forced: str | None = None) -> Path:
    """Builds the library of one architecture into ``folder``."""
    library = folder / f"libedge_train_{target.machine}.so"
    with tempfile.TemporaryDirectory() as scratch:
        objects = []
        for variant in target.variants:
            objects.append(Path(scratch) / f"{variant.name}.o")
            objects[-1].write_bytes(object_code(target, variant))
        objects += compile_sources(target.machine, Path(scratch), sanitized, forced)
        if sanitized:
            link_sanitized(objects, library)
        else:
            link(target, objects, library)
    return library


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    names = [target.machine for target in TARGETS]
    usable = [t.machine for t in TARGETS if t.linker() and COMPILERS[t.machine].program()]
    text = f"of {', '.join(names)} (default: those with their tools: {', '.join(usable)})"
    parser.add_argument("machine", nargs="*", default=usable, help=text)
    parser.add_argument("--out", type=Path, default=ROOT / "edge_train" / "native")
    parser.add_argument(
        "--sanitize", action="store_true", help="this machine's, under ASan and UBSan, for tests"
    )
    parser.add_argument(
        "--level", choices=list(FORCED), help="x86-64: the kernels that run, for tests of them"
    )
    arguments = parser.parse_args()
    unknown = set(arguments.machine) - set(names)
    if unknown:
        parser.error(f"unknown machine {sorted(unknown)}; choose from {names}")
    llvm.set_option("edge_train", "-disable-loop-idiom-memset")
    llvm.set_option("edge_train", "-disable-loop-idiom-memcpy")
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for target in TARGETS:
        if target.machine in arguments.machine:
            library = build(target, arguments.out, arguments.sanitize, arguments.level)
            print(f"{library}: {library.stat().st_size} bytes")


if __name__ == "__main__":
    main()
