"""Running a piece of Python in a process of its own: its exit code, output and memory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]

#: for the child: ``memory("VmRSS")`` and ``memory("VmHWM")`` in kB
MEMORY = """
def memory(key):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(key))
"""


def run_python(
    code: str, *arguments: object, env: Mapping[str, str] | None = None, timeout: float = 300
) -> subprocess.CompletedProcess[str]:
    """Runs ``code`` with warnings as errors; ``arguments`` are its sys.argv[1:]."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **(env or {})}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout,
        env=environment,
        check=False,
    )


def succeed(done: subprocess.CompletedProcess[str]) -> str:
    """What a child that ended well and said nothing on stderr wrote to stdout."""
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    assert done.stderr == ""
    return done.stdout
