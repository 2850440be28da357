"""Compiles native/*.c for one architecture: kernels.c once for each instruction set.

Freestanding C: no libc, no libgcc; ``-z defs`` of the link in build_kernels.py proves it.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

SOURCES = Path(__file__).parents[1] / "native"

#: the file that holds all kernels of an instruction set; every other .c is compiled once
KERNELS = "kernels.c"
#: how those others are compiled: they only call
SMALL = ("-Os",)

FLAGS = (
    *("-std=gnu11", "-O3", "-ffreestanding", "-nostdlib", "-fPIC", "-fvisibility=hidden"),
    *("-Wall", "-Wextra", "-Werror", "-Wno-unused-function", "-fno-stack-protector"),
    *("-fno-asynchronous-unwind-tables", "-fno-ident", "-ffp-contract=fast", "-fno-math-errno"),
    "-fno-tree-loop-distribute-patterns",  # loops of memory.c must not call themselves
    # -O3 makes copies of loops and functions for special cases: a tenth of the library
    *("-fno-ipa-cp-clone", "-fno-unswitch-loops", "-fno-version-loops-for-strides"),
    *("-fno-split-loops", "-fno-split-paths"),
    *("-fno-align-functions", "-fno-align-jumps", "-fno-align-labels"),  # loops are aligned
    f"-ffile-prefix-map={SOURCES}=native",
)


#: for a build that runs under AddressSanitizer and UBSan: with libc, whose memset stands in
SANITIZED = (
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=undefined",
    "-g",
    "-O1",
    "-Wno-maybe-uninitialized",
)


#: builds for tests: one of these levels whatever the processor; "wide" is what runs with AVX-512,
#: AVX2's kernels among it, the vectors of AVX-512 made of smaller ones so that they run anywhere
FORCED = {"base": 0, "avx2": 1, "wide": 2}


@dataclass(frozen=True)
class Compiler:
    """A C compiler for an architecture, and the flags of each of its instruction sets."""

    machine: str
    programs: tuple[str, ...]
    package: str
    levels: dict[str, tuple[str, ...]]

    def program(self) -> str | None:
        """The first program that is installed; plain gcc serves this machine only."""
        here = self.machine == platform.machine()
        usable = [name for name in self.programs if here or name != "gcc"]
        return next((name for name in usable if shutil.which(name)), None)


COMPILERS = {
    compiler.machine: compiler
    for compiler in (
        Compiler(
            "x86_64",
            ("x86_64-linux-gnu-gcc", "gcc"),
            "gcc",
            {
                # processors without AVX2 are rare: small rather than quick
                "base": ("-Os",),
                "avx2": ("-march=x86-64-v3",),
                # memory holds the others up, not arithmetic: AVX2's serve
                "avx512": ("-march=x86-64-v4", "-mprefer-vector-width=512", "-DET_FEW"),
            },
        ),
        Compiler(
            "aarch64",
            ("aarch64-linux-gnu-gcc", "gcc"),
            "gcc-aarch64-linux-gnu",
            # x18 belongs to Android; outline atomics would need libgcc
            {"base": ("-march=armv8-a", "-ffixed-x18", "-mno-outline-atomics")},
        ),
        Compiler(
            "armv7",
            ("arm-linux-gnueabihf-gcc",),
            "gcc-arm-linux-gnueabihf",
            {
                "base": (
                    *("-mcpu=cortex-a7", "-mfpu=neon-vfpv4", "-mfloat-abi=hard"),
                    # GCC gives NEON's flushing arithmetic only to those who ask for unsafe maths;
                    # the parts of it that change results for numbers are taken back
                    *("-funsafe-math-optimizations", "-fno-associative-math"),
                    *("-fno-reciprocal-math", "-fsigned-zeros", "-ftrapping-math"),
                )
            },
        ),
    )
}


def compile_sources(
    machine: str, folder: Path, sanitized: bool = False, forced: str | None = None
) -> list[Path]:
    """Object files of every C source for ``machine``, made in ``folder``.

    ``forced``, one of FORCED: the level that runs, on x86-64.

    Errors: SystemExit naming the compiler's package where there is none.
    """
    compiler = COMPILERS[machine]
    program = compiler.program()
    if program is None:
        wanted = " or ".join(compiler.programs)
        raise SystemExit(f"no C compiler for {machine}: install {compiler.package} ({wanted})")
    objects = []
    common = [flag for flag in FLAGS if flag not in ("-ffreestanding", "-nostdlib", "-O3")]
    common = [*common, *SANITIZED] if sanitized else list(FLAGS)
    every = dict(compiler.levels)
    if forced is not None:
        common.append(f"-DET_LEVEL={FORCED[forced]}")
        if forced == "wide":
            every["avx512"] = (*every["avx2"], "-DET_FEW", "-DET_WIDE", "-Wno-psabi")
    for source in sorted(SOURCES.glob("*.c")):
        if source.name in _parts() or (sanitized and source.name == "memory.c"):
            continue
        levels = every if source.name == KERNELS else {"": (*every["base"], *SMALL)}
        for level, flags in levels.items():
            target = folder / f"{source.stem}{level and '_' + level}.o"
            define = [f"-DET_ISA={level}"] if level else []
            command = [program, *common, *flags, *define, "-c", str(source), "-o", str(target)]
            subprocess.run(command, check=True)
            objects.append(target)
    return objects


def _parts() -> set[str]:
    """The sources that kernels.c includes."""
    lines = (SOURCES / KERNELS).read_text(encoding="utf-8").splitlines()
    return {line.split('"')[1] for line in lines if line.startswith("#include") and '.c"' in line}
