"""Feeds damaged files to the readers: python tools/fuzz.py TARGET [--seconds N] [--work FOLDER].

checkpoint, folder, onnx, lowering: coverage-guided (the package atheris), from the corpus in
tests/hostile/corpus/TARGET and the goldens; a finding is written to fuzz-findings/ and ends the
run with another exit code than 0. FOLDER keeps what added coverage (the corpus is its small files).
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import tracemalloc
from pathlib import Path

import atheris

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
sys.setrecursionlimit(3000)  # the instrumentation adds frames
with atheris.instrument_imports(include=["edge_train"]):
    from support import fuzz_targets

MAX_LEN = 8192
SEEDS = {
    "checkpoint": ("golden/*/*/*checkpoint", "golden/*/*checkpoint"),
    "folder": ("golden/legacy/*/*.pbseq",),
    "onnx": ("golden/*/*/*.onnx", "golden/*/*.onnx"),
    "lowering": ("golden/*/*/training_model.onnx", "golden/*/training_model.onnx"),
    "safetensors": (),  # the corpus has them
    "npz": ("golden/zoo/mlp_*/run.npz",),
}


def seeds(target: str, folder: Path) -> None:
    """Copy the goldens that are small enough."""
    for pattern in SEEDS[target]:
        for path in (ROOT / "tests").glob(pattern):
            if path.is_file() and path.stat().st_size <= MAX_LEN:
                shutil.copy(path, folder / str(path.relative_to(ROOT)).replace(os.sep, "_"))


def fuzz(target: str, arguments: list[str]) -> None:
    """Hand over to libFuzzer, which exits."""
    run = fuzz_targets.TARGETS[target]
    tracemalloc.start()
    atheris.Setup(
        [sys.argv[0], *arguments], lambda data: fuzz_targets.within_memory(run, data) and None
    )
    atheris.Fuzz()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", choices=sorted(fuzz_targets.TARGETS))
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--work", type=Path, help="folder of what the run finds new, to keep")
    asked = parser.parse_args()
    corpus = ROOT / "tests" / "hostile" / "corpus" / asked.target
    findings = ROOT / "fuzz-findings"
    for folder in (corpus, findings):
        folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        work = asked.work or Path(scratch) / "new"
        start = Path(scratch) / "seeds"
        for folder in (work, start):
            folder.mkdir(parents=True, exist_ok=True)
        seeds(asked.target, start)
        common = [
            f"-max_len={MAX_LEN}",
            "-rss_limit_mb=2048",
            "-timeout=20",
            "-print_final_stats=1",
        ]
        common.append(f"-artifact_prefix={findings}/{asked.target}-")
        arguments = [f"-max_total_time={asked.seconds}", *common, *map(str, (work, corpus, start))]
        # libFuzzer ends its process: a child, so that the scratch folder goes away
        child = os.fork()
        if child == 0:
            fuzz(asked.target, arguments)
            os._exit(0)
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


if __name__ == "__main__":
    main()
