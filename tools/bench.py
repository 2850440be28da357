"""edge_train beside the reference in one run: rounds in turn, so that both see the same noise.

    .venv/bin/python tools/bench.py mlp [--reference PYTHON] [--rounds N] [--json FILE]

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
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from support.reference import Reference, reference_python  # noqa: E402

LAYERS = (784, 500, 10)
# Distinct batches, by batch size. A handful of single rows would be learned by heart at once, and
# what is timed then is arithmetic on subnormal gradients.
BATCHES = {64: 32, 1: 1024}
RATE = 1e-3
WARM_UP = 20
# Steps of one round: about a tenth of a second, by batch size.
STEPS = {64: 60, 1: 250}
SIDES = {
    "reference": ("onnxruntime.training.api", {}),
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

    batch: int
    side: str
    median_ms: float
    best_ms: float
    ratio: float
    peak_rss_mib: float
    loss_difference: float


def mlp_model() -> bytes:
    """Forward model x (batch, 784) -> Gemm 500 -> Relu -> Gemm 10."""
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    inputs, hidden, outputs = LAYERS
    values = {
        "w1": rng.standard_normal((hidden, inputs)) * np.sqrt(2 / inputs),
        "b1": np.zeros(hidden),
        "w2": rng.standard_normal((outputs, hidden)) * np.sqrt(2 / hidden),
        "b2": np.zeros(outputs),
    }
    graph = helper.make_graph(
        [
            helper.make_node("Gemm", ["x", "w1", "b1"], ["h"], "fc1", transB=1),
            helper.make_node("Relu", ["h"], ["r"], "relu"),
            helper.make_node("Gemm", ["r", "w2", "b2"], ["y"], "fc2", transB=1),
        ],
        "mlp",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", inputs])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", outputs])],
        [numpy_helper.from_array(value.astype(np.float32), key) for key, value in values.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())


def random_feeds(batch: int) -> list[list[Any]]:
    rng = np.random.default_rng(batch)
    return [
        [
            rng.random((batch, LAYERS[0]), dtype=np.float32),
            rng.integers(0, LAYERS[-1], batch, dtype=np.int64),
        ]
        for _ in range(BATCHES[batch])
    ]


def start_sides(python: Path, threads: int) -> list[Side]:
    child = str(ROOT / "tools" / "bench_child.py")
    sides = []
    for name, (api, extra) in SIDES.items():
        interpreter = python if name == "reference" else Path(sys.executable)
        environment = {**extra, "OMP_NUM_THREADS": str(threads)}
        sides.append(Side(name, Reference(interpreter, server=[child, api], extra_env=environment)))
    return sides


def measure(
    python: Path, folder: Path, batch: int, threads: int, rounds: int, kernels: set[str]
) -> list[Row]:
    sides = [side for side in start_sides(python, threads) if side.name in {"reference", *kernels}]
    feeds = random_feeds(batch)
    for side in sides:
        side.child.call("load", folder=str(folder), feeds=feeds, rate=RATE, threads=threads)
        side.take(WARM_UP, measured=False)
    for number in range(rounds):
        for side in sides if number % 2 else reversed(sides):
            side.take(STEPS[batch])
    reference = sides[0]
    rows = [row(side, reference, batch) for side in sides]
    for side in sides:
        side.child.close()
    return rows


def row(side: Side, reference: Side, batch: int) -> Row:
    ours, theirs = np.array(side.losses), np.array(reference.losses)
    away = np.abs(ours - theirs)[:WARM_UP] / np.abs(theirs[:WARM_UP])
    return Row(
        batch=batch,
        side=side.name,
        median_ms=median(side.rounds),
        best_ms=side.best,
        ratio=median(side.rounds) / median(reference.rounds),
        peak_rss_mib=side.child.peak_rss_mib(),
        loss_difference=float(away.max()),
    )


def print_table(rows: list[Row], threads: int, rounds: int) -> None:
    layers = "-".join(map(str, LAYERS))
    print(f"\nMLP {layers}, cross-entropy, AdamW, {threads} thread(s), {rounds} rounds in turn\n")
    print(
        "| batch | side | median ms | best ms | of the reference | peak RSS MiB | loss, relative |"
    )
    print("|---|---|---|---|---|---|---|")
    for entry in rows:
        print(
            f"| {entry.batch} | {entry.side} | {entry.median_ms:.3f} | {entry.best_ms:.3f} "
            f"| {entry.ratio:.2f} | {entry.peak_rss_mib:.0f} | {entry.loss_difference:.1e} |"
        )
    print(f"\nloss: largest relative difference over the first {WARM_UP} steps")


def mlp(arguments: argparse.Namespace, python: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        maker = Reference(python)
        maker.generate_artifacts(mlp_model(), folder, requires_grad=["w1", "b1", "w2", "b2"])
        maker.close()
        rows: list[Row] = []
        for batch in arguments.batch:
            kernels = set(arguments.kernels)
            rows += measure(python, folder, batch, arguments.threads, arguments.rounds, kernels)
    print_table(rows, arguments.threads, arguments.rounds)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([asdict(entry) for entry in rows], indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["mlp"])
    parser.add_argument("--reference", type=Path, help="interpreter of the reference venv")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch", type=int, nargs="+", default=[64, 1], choices=list(STEPS))
    parser.add_argument("--kernels", nargs="+", default=["numpy", "numba"])
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    arguments = parser.parse_args()
    python = arguments.reference or reference_python()
    if python is None or not python.exists():
        raise SystemExit("no reference venv: make parity builds it")
    mlp(arguments, python.absolute())


if __name__ == "__main__":
    main()
