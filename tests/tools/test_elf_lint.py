"""Android's linker rules: kept by our libraries, broken by others; instructions of AArch64."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from edge_train.kernels import native

sys.path.append(str(Path(__file__).parents[2] / "tools"))
import elf_lint

LIBRARIES = sorted(native.FOLDER.glob("*.so"))


@pytest.fixture(params=["x86_64", "aarch64", "armv7"])
def library(request: pytest.FixtureRequest) -> bytes:
    path = native.FOLDER / f"libedge_train_{request.param}.so"
    if not path.exists():
        pytest.skip(f"no {path.name}: tools/build_kernels.py makes it")
    return path.read_bytes()


def test_our_libraries_keep_every_rule(library: bytes) -> None:
    assert elf_lint.lint(library) == []


def test_the_libraries_of_all_architectures_are_small() -> None:
    if len(LIBRARIES) < 3:
        pytest.skip("not all three libraries: tools/build_kernels.py makes them")
    assert sum(path.stat().st_size for path in LIBRARIES) < 600_000


def test_a_changed_library_breaks_the_rule(library: bytes) -> None:
    """Each field in turn: type, section names, alignment, stack."""
    elf = elf_lint.read(library)
    wide = library[4] == 2
    table = struct.unpack_from("<Q" if wide else "<I", library, 32 if wide else 28)[0]
    size = 56 if wide else 32
    kinds = [segment.kind for segment in elf.segments]
    load, stack = (table + size * kinds.index(kind) for kind in (elf_lint.LOAD, elf_lint.STACK))
    changes = {
        "not a shared library": (16, "<H", 2),
        "names are stripped": (62 if wide else 50, "<H", 0),
        "is aligned to 0x1000": (load + (48 if wide else 28), "<Q" if wide else "<I", 4096),
        "stack would be executable": (stack + (4 if wide else 24), "<I", 7),
    }
    for words, (at, form, value) in changes.items():
        changed = bytearray(library)
        struct.pack_into(form, changed, at, value)
        assert any(words in line for line in elf_lint.lint(bytes(changed))), words


@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"\x7fELF\x02\x01" + bytes(70), b"MZ" * 50])
def test_what_is_no_library_is_said(data: bytes) -> None:
    assert elf_lint.lint(data)


def test_an_ordinary_library_is_refused(tmp_path: Path) -> None:
    """glibc's versions, its name and undefined symbols: all that Android has not got."""
    if shutil.which("gcc") is None:
        pytest.skip("no C compiler here")
    source = tmp_path / "a.c"
    source.write_text("#include <stdlib.h>\nvoid *take(void) { return malloc(4); }\n")
    made = tmp_path / "a.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", made, source], check=True)
    found = "; ".join(elf_lint.lint(made.read_bytes()))
    for words in ("malloc", "DT_VERNEED", "libc.so.6", "DT_SONAME"):
        assert words in found
    assert elf_lint.main([str(made)]) == 1


def test_forbidden_instructions_are_seen() -> None:
    assert elf_lint.lint_code("add\tx0, x1, x17") == []
    assert elf_lint.lint_code("add\tx0, x18, x1")
    assert elf_lint.lint_code("fmla\tz0.s, p0/m, z1.s, z2.s")


def test_the_kernels_of_aarch64_are_neon() -> None:
    path = native.FOLDER / "libedge_train_aarch64.so"
    text = elf_lint.instructions(path, "aarch64") if path.exists() else None
    if text is None:
        pytest.skip("no library of AArch64, or no objdump for it")
    assert elf_lint.lint_code(text) == []
    for instruction in ("fmla", "fsqrt", "fdiv"):
        assert len(re.findall(rf"\b{instruction}\s+v\d+\.4s", text)) >= 3, instruction
