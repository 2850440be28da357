"""Would Android's linker load these libraries?   python tools/elf_lint.py LIBRARY...

The rules of bionic's linker, read in its sources, checked on the file; what glibc lets pass and
Android does not. With an objdump of the machine the instructions too: x18 is Android's, SVE would
end the process on every board there is. Exits 1 when a rule is broken.
"""

from __future__ import annotations

import itertools
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

PAGE = 16384
MACHINES = {3: "i386", 40: "arm", 62: "x86_64", 183: "aarch64"}
#: what an app may name; each other library is private to the system
PUBLIC = ("libc.so", "libm.so", "libdl.so", "liblog.so")
OBJDUMPS = {"aarch64": "aarch64-linux-gnu-objdump", "arm": "arm-linux-gnueabihf-objdump"}

LOAD, DYNAMIC, INTERP, TLS, STACK = 1, 2, 3, 7, 0x6474E551
NEEDED, HASH, STRTAB, SYMTAB, SONAME, RPATH, TEXTREL, FLAGS = 1, 4, 5, 6, 14, 15, 22, 30
RUNPATH, VERNEED = 29, 0x6FFFFFFE


@dataclass(frozen=True)
class Segment:
    """A program header."""

    kind: int
    flags: int
    offset: int
    address: int
    file_size: int
    size: int
    align: int


@dataclass
class Elf:
    """The parts of a library that a linker reads."""

    machine: str
    kind: int
    segments: list[Segment]
    sections: list[tuple[int, ...]]  # type, address, offset, size
    has_section_names: bool
    dynamic: list[tuple[int, int]] = field(default_factory=list)
    undefined: list[str] = field(default_factory=list)
    needed: list[str] = field(default_factory=list)


def read(data: bytes) -> Elf:
    """Parses a shared library. Errors: ValueError where it is none that Android could have."""
    if data[:4] != b"\x7fELF" or data[5] != 1:
        raise ValueError("not a little-endian ELF file")
    wide = data[4] == 2
    form = "<HHIQQQIHHHHHH" if wide else "<HHIIIIIHHHHHH"
    kind, machine, _, _, at, sections_at, _, _, step, count, section_step, sections, names = (
        struct.unpack_from(form, data, 16)
    )
    segments = [_segment(data, at + i * step, wide) for i in range(count)]
    headers = [_section(data, sections_at + i * section_step, wide) for i in range(sections)]
    elf = Elf(MACHINES.get(machine, str(machine)), kind, segments, headers, bool(names))
    for segment in segments:
        if segment.kind == DYNAMIC:
            elf.dynamic = list(_entries(data, segment, wide))
    _read_names(elf, data, wide)
    return elf


def _segment(data: bytes, at: int, wide: bool) -> Segment:
    if wide:
        kind, flags, offset, address, _, file_size, size, align = struct.unpack_from(
            "<IIQQQQQQ", data, at
        )
    else:
        kind, offset, address, _, file_size, size, flags, align = struct.unpack_from(
            "<IIIIIIII", data, at
        )
    return Segment(kind, flags, offset, address, file_size, size, align)


def _section(data: bytes, at: int, wide: bool) -> tuple[int, ...]:
    _, kind, _, address, offset, size = struct.unpack_from(
        "<IIQQQQ" if wide else "<IIIIII", data, at
    )
    return kind, address, offset, size


def _entries(data: bytes, segment: Segment, wide: bool) -> Iterator[tuple[int, int]]:
    form = "<qQ" if wide else "<iI"
    for at in range(segment.offset, segment.offset + segment.file_size, struct.calcsize(form)):
        tag, value = struct.unpack_from(form, data, at)
        if tag == 0:
            return
        yield tag, value


def _read_names(elf: Elf, data: bytes, wide: bool) -> None:
    strings = dict(elf.dynamic).get(STRTAB, 0)

    def name(offset: int) -> str:
        return data[strings + offset : data.index(b"\0", strings + offset)].decode()

    elf.needed = [name(value) for tag, value in elf.dynamic if tag == NEEDED]
    for kind, _, offset, size in elf.sections:
        step = 24 if wide else 16
        for at in range(offset + step, offset + size, step) if kind == 11 else ():
            if wide:
                label, _, _, section = struct.unpack_from("<IBBH", data, at)
            else:
                label, _, _, _, _, section = struct.unpack_from("<IIIBBH", data, at)
            if section == 0:
                elf.undefined.append(name(label))


def lint(data: bytes) -> list[str]:
    """The rules that a library breaks."""
    try:
        elf = read(data)
    except (ValueError, struct.error, IndexError) as error:
        return [f"not a library: {error}"]
    return [*_of_file(elf), *_of_segments(elf), *_of_dynamic(elf)]


def _of_file(elf: Elf) -> Iterator[str]:
    if elf.kind != 3:
        yield f"not a shared library: e_type {elf.kind}, expected 3"
    if not elf.sections or not elf.has_section_names:
        yield "section headers or their names are stripped"
    if elf.undefined:
        yield f"undefined symbols: {', '.join(sorted(elf.undefined)[:5])}"


def _of_segments(elf: Elf) -> Iterator[str]:
    loads = [segment for segment in elf.segments if segment.kind == LOAD]
    if not loads:
        yield "no PT_LOAD"
    for load in loads:
        if load.flags & 3 == 3:
            yield "a segment can be written and executed"
        if load.align < PAGE or (load.address - load.offset) % PAGE:
            yield f"a segment is aligned to {load.align:#x}, pages of {PAGE:#x} need more"
    for first, second in itertools.pairwise(loads):
        if (first.address + first.size - 1) // PAGE >= second.address // PAGE:
            yield "two segments share a page"
    if not any(segment.kind == STACK and not segment.flags & 1 for segment in elf.segments):
        yield "the stack would be executable"
    for kind, words in ((INTERP, "PT_INTERP"), (TLS, "PT_TLS, which Android below 10 refuses")):
        if any(segment.kind == kind for segment in elf.segments):
            yield words


def _of_dynamic(elf: Elf) -> Iterator[str]:
    tags = dict(elf.dynamic)
    segment = next((s for s in elf.segments if s.kind == DYNAMIC), None)
    section = next((s for s in elf.sections if s[0] == 6), None)
    if segment is None or section is None or section[2:] != (segment.offset, segment.file_size):
        yield "the section .dynamic is not PT_DYNAMIC"
    for tag, word in ((HASH, "DT_HASH"), (STRTAB, "DT_STRTAB"), (SYMTAB, "DT_SYMTAB")):
        if tag not in tags:
            yield f"no {word}"
    if SONAME not in tags:
        yield "no DT_SONAME"
    if TEXTREL in tags or tags.get(FLAGS, 0) & 4:
        yield "text relocations"
    if RPATH in tags or RUNPATH in tags:
        yield "DT_RPATH or DT_RUNPATH"
    if VERNEED in tags:
        yield "DT_VERNEED: wants versions of symbols, as glibc has them"
    private = [name for name in elf.needed if name not in PUBLIC]
    if private:
        yield f"needs {', '.join(private)}"


def instructions(path: Path, machine: str) -> str | None:
    """The disassembly, None where no objdump of that machine is installed."""
    program = OBJDUMPS.get(machine, "objdump")
    if shutil.which(program) is None:
        return None
    done = subprocess.run([program, "-d", str(path)], capture_output=True, text=True, check=True)
    return done.stdout


def lint_code(text: str) -> list[str]:
    """What AArch64 code must not have: Android's register x18, SVE's registers."""
    found = []
    if re.search(r"\b[xw]18\b", text):
        found.append("uses x18, which belongs to Android")
    if re.search(r"\bz\d+\.[bhsd]|\bp\d+/[mz]|\b(ptrue|whilelo|cntw)\b", text):
        found.append("uses SVE")
    return found


def main(paths: list[str]) -> int:
    """Prints each library with the rules that it breaks."""
    broken = False
    for path in map(Path, paths):
        data = path.read_bytes()
        found = lint(data)
        machine = read(data).machine if data[:4] == b"\x7fELF" else ""
        if machine == "aarch64":
            text = instructions(path, machine)
            found += lint_code(text) if text is not None else []
            if text is None:
                print(f"{path}: {OBJDUMPS[machine]} is not installed: instructions not looked at")
        broken = broken or bool(found)
        print(f"{path}: {'; '.join(found) or 'ok'}")
    return int(broken)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
