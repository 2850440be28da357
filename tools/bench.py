"""edge_train beside the reference in one run: rounds in turn, so that both see the same noise.

    .venv/bin/python tools/bench.py WORK… [--reference PYTHON] [--rounds N] [--json FILE]

Absolute times differ from machine to machine; only the ratios of one run count.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tools")]

from bench_models import WORKLOADS, Workload  # noqa: E402
from support.reference import Reference, reference_python  # noqa: E402

from edge_train.kernels import native  # noqa: E402

WARM_UP = 8
SIDES = {
    "reference": ("onnxruntime.training.api", {}),
    "native": ("edge_train.api", {"EDGE_TRAIN_KERNELS": "native"}),
    "numpy": ("edge_train.api", {"EDGE_TRAIN_KERNELS": "numpy"}),
    "numba": ("edge_train.api", {"EDGE_TRAIN_KERNELS": "numba"}),
}


@dataclass
class Side:
    """One child process and what it has measured."""

    name: str
    child: Reference
    rounds: list[float] = field(default_factory=list)  # median ms of a step, by round
    best: float = float("inf")
    losses: list[float] = field(default_factory=list)

    def take(self, steps: int, measured: bool = True) -> None:
        done = self.child.call("steps", count=steps)
        self.losses += done["losses"]
        if measured:
            self.rounds.append(median(done["milliseconds"]))
            self.best = min(self.best, *done["milliseconds"])


@dataclass(frozen=True)
class Row:
    """Result of one side at one batch size; ratios are to the reference of the same run."""

    work: str
    batch: int
    side: str
    median_ms: float
    best_ms: float
    ratio: float
    peak_rss_mib: float
    loss_difference: float


def start_sides(python: Path, threads: int) -> list[Side]:
    child = str(ROOT / "tools" / "bench_child.py")
    sides = []
    for name, (api, extra) in SIDES.items():
        interpreter = python if name == "reference" else Path(sys.executable)
        environment = {**extra, "OMP_NUM_THREADS": str(threads)}
        sides.append(Side(name, Reference(interpreter, server=[child, api], extra_env=environment)))
    return sides


def measure(
    python: Path, folder: Path, work: Workload, threads: int, rounds: int, kernels: set[str]
) -> list[Row]:
    sides = [side for side in start_sides(python, threads) if side.name in {"reference", *kernels}]
    feeds = work.feeds()
    for side in sides:
        side.child.call("load", folder=str(folder), feeds=feeds, rate=work.rate, threads=threads)
        side.take(WARM_UP, measured=False)
    for number in range(rounds):
        for side in sides if number % 2 else reversed(sides):
            side.take(work.steps)
    rows = [row(side, sides[0], work) for side in sides]
    for side in sides:
        side.child.close()
    return rows


def row(side: Side, reference: Side, work: Workload) -> Row:
    ours, theirs = np.array(side.losses), np.array(reference.losses)
    away = np.abs(ours - theirs)[:WARM_UP] / np.abs(theirs[:WARM_UP])
    return Row(
        work=work.name,
        batch=work.batch,
        side=side.name,
        median_ms=median(side.rounds),
        best_ms=side.best,
        ratio=median(side.rounds) / median(reference.rounds),
        peak_rss_mib=side.child.peak_rss_mib(),
        loss_difference=float(away.max()),
    )


def print_table(rows: list[Row], threads: int, rounds: int) -> None:
    print(f"\nCross-entropy, AdamW, {threads} thread(s), {rounds} rounds in turn\n")
    print(
        "| work | batch | side | median ms | best ms | of the reference | peak RSS MiB "
        "| loss, relative |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for entry in rows:
        print(
            f"| {entry.work} | {entry.batch} | {entry.side} | {entry.median_ms:.3f} "
            f"| {entry.best_ms:.3f} | {entry.ratio:.2f} | {entry.peak_rss_mib:.0f} "
            f"| {entry.loss_difference:.1e} |"
        )
    print(f"\nloss: largest relative difference over the first {WARM_UP} steps")


def run(arguments: argparse.Namespace, python: Path) -> None:
    rows: list[Row] = []
    for name in arguments.work:
        work = WORKLOADS[name]()
        with tempfile.TemporaryDirectory() as scratch:
            folder, maker = Path(scratch), Reference(python)
            maker.generate_artifacts(
                work.model, folder, requires_grad=work.trainable, frozen_params=work.frozen
            )
            maker.close()
            kernels = set(arguments.kernels)
            rows += measure(python, folder, work, arguments.threads, arguments.rounds, kernels)
    print_table(rows, arguments.threads, arguments.rounds)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([asdict(entry) for entry in rows], indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("work", nargs="+", choices=["mlp", *WORKLOADS])
    parser.add_argument("--reference", type=Path, help="interpreter of the reference venv")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--kernels", nargs="+", default=["native", "numpy", "numba"])
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    arguments = parser.parse_args()
    arguments.work = [
        name for each in arguments.work for name in (["mlp64", "mlp1"] if each == "mlp" else [each])
    ]
    if native.library_path() is None:
        arguments.kernels = [name for name in arguments.kernels if name != "native"]
    python = arguments.reference or reference_python()
    if python is None or not python.exists():
        raise SystemExit("no reference venv: make parity builds it")
    run(arguments, python.absolute())


if __name__ == "__main__":
    main()
