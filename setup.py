"""Says which kernels a build has not got; everything else is in pyproject.toml."""

from __future__ import annotations

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

MACHINES = ("aarch64", "armv7", "x86_64")


class BuildPy(build_py):
    """Packs what tools/build_kernels.py has left in edge_train/native, and compiles nothing."""

    def run(self) -> None:
        super().run()
        there = {path.stem for path in Path("edge_train/native").glob("*.so")}
        missing = [name for name in MACHINES if f"libedge_train_{name}" not in there]
        if missing:
            self.warn(
                f"no native kernels for {', '.join(missing)}: NumPy's or Numba's steps and the "
                "portable graph do the work there (tools/build_kernels.py compiles them)"
            )


setup(cmdclass={"build_py": BuildPy})
