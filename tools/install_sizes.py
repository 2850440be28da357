"""What an AArch64 machine needs on its disk: tools/install_sizes.py SITE NATIVE [--page PAGE]

SITE is the folder of packages of an arm64 tree (platforms/qemu/tree.sh), NATIVE the folder of the
native libraries. Prints a table, or writes it into PAGE between its two marks. Exits 1 above the
limits: 2 MB for ours with the library of the machine (the wheel, which has those of all machines,
is held below 2 MB by tools/build_wheel.py), 130 MB for everything without Numba.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
MARKS = ("<!-- sizes -->\n", "<!-- /sizes -->\n")
OURS, OTHERS = "edge_train with its library", "its libraries for other machines"
LIMIT_OURS, LIMIT_ALL = 2e6, 130e6
#: package: the folders and files that it unpacks to
PACKAGES = {
    "onnxruntime": ("onnxruntime",),
    "NumPy": ("numpy", "numpy.libs"),
    "protobuf, flatbuffers, tqdm, packaging": ("google", "flatbuffers", "tqdm", "packaging"),
    "cffi": ("cffi", "_cffi_backend*", "pycparser"),
}
NUMBA = {"Numba and llvmlite": ("numba", "llvmlite")}


def size(*paths: Path) -> int:
    """Bytes of files, without bytecode and the metadata of packages."""
    files = [path for top in paths for path in ([top] if top.is_file() else top.rglob("*"))]
    return sum(
        path.stat().st_size
        for path in files
        if path.is_file() and path.suffix != ".pyc" and not path.is_symlink()
    )


def measure(site: Path, native: Path) -> dict[str, int]:
    """Bytes by package, ours first."""
    package = size(ROOT / "edge_train") - size(*(ROOT / "edge_train" / "native").glob("*.so"))
    library = size(native / "libedge_train_aarch64.so")
    found = {OURS: package + library, OTHERS: size(*native.glob("*.so")) - library}
    for name, patterns in {**PACKAGES, **NUMBA}.items():
        found[name] = size(*(path for pattern in patterns for path in site.glob(pattern)))
    return found


def table(found: dict[str, int]) -> str:
    """The rows in MB, with both sums."""
    everything = sum(found.values())
    without = everything - found["Numba and llvmlite"]
    rows = [*found.items(), ("**all without Numba**", without), ("all with Numba", everything)]
    lines = [f"| {name} | {count / 1e6:.1f} |" for name, count in rows]
    return "\n".join(["| unpacked, AArch64 | MB |", "|---|---|", *lines]) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("site", type=Path)
    parser.add_argument("native", type=Path)
    parser.add_argument("--page", type=Path)
    arguments = parser.parse_args()
    found = measure(arguments.site, arguments.native)
    empty = [name for name, count in found.items() if not count]
    if empty:
        sys.exit(f"{arguments.site} has no {', '.join(empty)}")
    text = table(found)
    print(text, end="")
    if arguments.page is not None:
        page = arguments.page.read_text(encoding="utf-8")
        block = re.compile(f"(?<={re.escape(MARKS[0])}).*?(?={re.escape(MARKS[1])})", re.DOTALL)
        arguments.page.write_text(block.sub(text, page), encoding="utf-8")
    without = sum(found.values()) - found["Numba and llvmlite"]
    return int(found[OURS] > LIMIT_OURS or without > LIMIT_ALL)


if __name__ == "__main__":
    sys.exit(main())
