"""Builds the wheel and the sdist from a clean copy:   python3 tools/build_wheel.py [--out dist]

From a git checkout (what git tracks) or an unpacked sdist. Makes an environment with the releases
of wheel.txt, compiles the native library of every architecture whose compiler is here, packs one
py3-none-any wheel. The same sources and compilers give the same bytes. Says which kernels are
missing; --complete makes that a failure.
"""

from __future__ import annotations

import argparse
import gzip
import io
import os
import shutil
import subprocess
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MACHINES = ("aarch64", "armv7", "x86_64")
LIMIT = 2_000_000  # bytes
EPOCH = 315_532_800  # 1980-01-01, where zip's calendar begins
#: what a build writes again, or another one left in the folder of an sdist
_LEFT = ("build", "dist", "*.egg-info", "PKG-INFO", "setup.cfg", "__pycache__", "*.so", ".venv*")
_HOOK = "import setuptools.build_meta as backend, sys; backend.build_{0}(sys.argv[1])"


def copy_sources(folder: Path) -> None:
    """The sources as a fresh checkout has them, with one file mode."""
    if (ROOT / ".git").exists():
        listed = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
        for name in filter(None, listed.split("\0")):
            if (ROOT / name).is_file() and not name.startswith(("tests/", ".")):
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / name, folder / name)
    else:
        shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(*_LEFT), dirs_exist_ok=True)
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)


def run(python: Path, *words: str | Path, cwd: Path) -> str:
    """Runs a Python quietly; its output, or SystemExit with it."""
    environment = {
        **os.environ,
        "SOURCE_DATE_EPOCH": str(EPOCH),
        "PYTHONHASHSEED": "0",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    done = subprocess.run(
        [python, *words], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, words))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def with_fixed_dates(sdist: Path) -> None:
    """Packs an sdist anew: sorted, without dates and owners."""
    with tarfile.open(sdist) as archive:
        members = sorted(archive.getmembers(), key=lambda member: member.name)
        contents = [archive.extractfile(member) for member in members]
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as output:
            for member, content in zip(members, contents, strict=True):
                member.mtime, member.uid, member.gid, member.uname, member.gname = (
                    EPOCH,
                    0,
                    0,
                    "",
                    "",
                )
                member.mode = 0o755 if member.isdir() else 0o644
                member.pax_headers = {}
                output.addfile(member, content)
    with open(sdist, "wb") as file, gzip.GzipFile("", "wb", 9, file, EPOCH) as zipped:
        zipped.write(packed.getvalue())


def check(wheel: Path, complete: bool) -> None:
    """Size, tag and kernels of a wheel; SystemExit where they are not as they should be."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    there = [m for m in MACHINES if f"edge_train/native/libedge_train_{m}.so" in names]
    missing = [machine for machine in MACHINES if machine not in there]
    size = wheel.stat().st_size
    print(f"{wheel}: {size} bytes, kernels for {', '.join(there) or 'no machine'}")
    if missing:
        print(
            f"no kernels for {', '.join(missing)}: those machines get the portable graph with "
            "NumPy's or Numba's steps; Debian's gcc, gcc-aarch64-linux-gnu and "
            "gcc-arm-linux-gnueabihf compile them"
        )
    if size > LIMIT or not wheel.name.endswith("-py3-none-any.whl") or (missing and complete):
        raise SystemExit(f"{wheel.name}: expected py3-none-any under {LIMIT} bytes, with kernels")


def build(out: Path, scratch: Path, complete: bool) -> None:
    """Makes both files in ``out``."""
    sources, environment = scratch / "sources", scratch / "environment"
    sources.mkdir()
    copy_sources(sources)
    venv.create(environment, with_pip=True)
    python = environment / "bin" / "python"
    run(python, "-m", "pip", "install", "-q", "-r", sources / "tools" / "wheel.txt", cwd=scratch)
    run(python, "-c", _HOOK.format("sdist"), scratch, cwd=sources)
    print(run(python, sources / "tools" / "build_kernels.py", cwd=sources), end="")
    for library in (sources / "edge_train" / "native").glob("*.so"):
        library.chmod(0o644)
    run(python, "-c", _HOOK.format("wheel"), scratch, cwd=sources)
    out.mkdir(parents=True, exist_ok=True)
    for made in (*scratch.glob("*.tar.gz"), *scratch.glob("*.whl")):
        if made.name.endswith(".tar.gz"):
            with_fixed_dates(made)
        shutil.copyfile(made, out / made.name)
    for made in sorted(out.glob("*.whl")):
        check(made, complete)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--complete", action="store_true", help="fail where kernels are missing")
    arguments = parser.parse_args()
    os.umask(0o022)  # wheels keep the modes of files
    with tempfile.TemporaryDirectory() as scratch:
        build(arguments.out.resolve(), Path(scratch), arguments.complete)


if __name__ == "__main__":
    main()
