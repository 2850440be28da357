"""edge_train beside the reference and PyTorch in one run: rounds in turn, so that all see the same
noise.

    .venv/bin/python tools/bench.py WORK… [--threads 1 2] [--sides SIDE…] [--reference PYTHON]
                                    [--rounds N] [--json FILE] [--markdown FILE] [--chart FILE]

Absolute times differ from machine to machine; only the ratios of one run count. The other venv has
onnxruntime-training and torch; without it, or with --alone, edge_train is measured by itself.
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
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tools")]

from bench_flops import training_flops  # noqa: E402
from bench_limits import Limits  # noqa: E402
from bench_models import WORKLOADS, Workload  # noqa: E402
from bench_report import Row, chart, markdown  # noqa: E402
from support.reference import Reference, ReferenceError, reference_python  # noqa: E402

WARM_UP = 8
CHILD = str(ROOT / "tools" / "bench_child.py")
OURS, THEIRS = "edge_train.api", "onnxruntime.training.api"


@dataclass(frozen=True)
class Kind:
    """What a side is: its API, environment, arguments of Module and Optimizer.

    ``own_artifacts``: where a part is trained, those that were generated for that part.
    """

    api: str
    environment: dict[str, str] = field(default_factory=dict)
    module: dict[str, Any] = field(default_factory=dict)
    optimizer: dict[str, Any] = field(default_factory=dict)
    own_artifacts: bool = False


PORTABLE = {"EDGE_TRAIN_KERNELS": "numpy"}
LEAN = {"fuse_optimizer": True, "recompute": "auto"}
KINDS = {
    "reference": Kind(THEIRS),
    "reference_part": Kind(THEIRS, own_artifacts=True),
    "edge_train": Kind(OURS),
    "portable": Kind(OURS, PORTABLE, {"kernels": "portable"}),
    "numba": Kind(OURS, {"EDGE_TRAIN_KERNELS": "numba"}),
    "fused_optimizer": Kind(OURS, module={"fuse_optimizer": True}),
    "8bit": Kind(OURS, optimizer={"moments": "8bit"}),
    "small_state": Kind(OURS, module={"fuse_optimizer": True}, optimizer={"moments": "8bit"}),
    "lean": Kind(OURS, module=LEAN, optimizer={"moments": "8bit"}),
    "torch": Kind("torch"),
    "torch_compile": Kind("torch.compile"),
}
DEFAULT = ["reference", "reference_part", "edge_train", "torch"]


@dataclass
class Side:
    """One child process and what it has measured: medians of the rounds, in ms."""

    name: str
    child: Reference
    rounds: list[float] = field(default_factory=list)
    optimizer: list[float] = field(default_factory=list)
    best: float = float("inf")
    losses: list[float] = field(default_factory=list)

    def take(self, steps: int, measured: bool = True) -> None:
        done = self.child.call("steps", count=steps)
        self.losses += done["losses"]
        if measured:
            self.rounds.append(median(done["milliseconds"]))
            self.optimizer.append(median(done["optimizer"]))
            self.best = min(self.best, *done["milliseconds"])


def started(name: str, python: Path | None, work: Workload, folder: Path, threads: int) -> Side:
    """A child that has loaded the artifacts (or built the network) and taken the first steps."""
    kind = KINDS[name]
    interpreter = Path(sys.executable) if kind.api == OURS or python is None else python
    environment = {**kind.environment, "OMP_NUM_THREADS": str(threads)}
    child = Reference(interpreter, 900, [CHILD, kind.api], environment)
    module = dict(kind.module)
    if work.subset is not None and kind.api == OURS:
        module["trainable"] = list(work.subset)
    side = Side(name, child)
    child.call(
        "load",
        feeds=work.feeds(),
        threads=threads,
        folder=str(folder / "part" if kind.own_artifacts else folder / "all"),
        rate=work.rate,
        module=module,
        optimizer=kind.optimizer,
        work=work.name,
        weights=work.weights,
        trainable=work.trained,
    )
    side.take(WARM_UP, measured=False)
    return side


def write_artifacts(python: Path | None, work: Workload, folder: Path) -> None:
    """The artifacts of the whole, and of the part where a part is trained."""
    wanted = {"all": list(work.trainable)}
    if work.subset is not None:
        wanted["part"] = work.trained
    for name, trained in wanted.items():
        frozen = [key for key in (*work.trainable, *work.frozen) if key not in trained]
        (folder / name).mkdir()
        if python is None:
            _own_artifacts(work, folder / name, trained, frozen)
            continue
        maker = Reference(python, 600)
        options = {"requires_grad": trained, "frozen_params": frozen}
        maker.generate_artifacts(work.model, folder / name, **options)
        maker.close()


def _own_artifacts(work: Workload, folder: Path, trained: list[str], frozen: list[str]) -> None:
    import onnx

    from edge_train import artifacts

    artifacts.generate_artifacts(
        onnx.load_model_from_string(work.model),
        requires_grad=trained,
        frozen_params=frozen,
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=artifacts.OptimType.AdamW,
        artifact_directory=str(folder),
    )


def measure(
    label: str, python: Path | None, names: list[str], threads: int, rounds: int
) -> list[Row]:
    """All sides of one work, in turn; a side that cannot run it is left out with its reason."""
    work, limits, sides = WORKLOADS[label](), Limits(threads), []
    with tempfile.TemporaryDirectory() as scratch:
        write_artifacts(python, work, Path(scratch))
        for name in names:
            if KINDS[name].own_artifacts and work.subset is None:
                continue
            try:
                sides.append(started(name, python, work, Path(scratch), threads))
            except ReferenceError as error:
                print(f"{label}, {name}: left out: {error}", file=sys.stderr)
        for number in range(rounds):
            limits.slice()
            for side in sides if number % 2 else reversed(sides):
                side.take(work.steps)
        rows = [row(side, sides, label, work, threads, limits) for side in sides]
    for side in sides:
        side.child.close()
    return rows


def row(
    side: Side, sides: list[Side], label: str, work: Workload, threads: int, limits: Limits
) -> Row:
    # where a part is trained, the reference beside it trains the whole
    first = next((each for each in sides if each.name == "reference_part"), sides[0])
    ours, theirs = np.array(side.losses[:WARM_UP]), np.array(first.losses[:WARM_UP])
    others = {other.name: _ratio(side.rounds, other.rounds) for other in sides}
    memory = side.child.call("memory")
    return Row(
        work=label,
        batch=work.batch,
        threads=threads,
        side=side.name,
        median_ms=median(side.rounds),
        best_ms=side.best,
        optimizer_ms=median(side.optimizer),
        ratios=others,
        peak_rss_mib=memory["peak"] / 1024,
        above_idle_mib=memory["above_idle"] / 1024,
        above_imports_mib=memory["above_imports"] / 1024,
        first_loss_difference=float(abs(ours[0] / theirs[0] - 1)),
        loss_difference=float(np.max(np.abs(ours / theirs - 1))),
        trained=sum(work.weights[name].size for name in work.trained),
        flops=None if work.subset else training_flops(work),
        gigabytes_per_second=median(limits.gigabytes),
        gigaflops=median(limits.gigaflops),
    )


def _ratio(own: list[float], others: list[float]) -> float:
    """The median of the rounds' ratios: both sides of each were measured within a second."""
    return median(a / b for a, b in zip(own, others, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("work", nargs="+", choices=["mlp", *WORKLOADS])
    parser.add_argument("--reference", type=Path, help="interpreter of the reference venv")
    parser.add_argument("--alone", action="store_true", help="edge_train only, no other venv")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--sides", nargs="+", choices=[*KINDS], default=DEFAULT)
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    parser.add_argument("--markdown", type=Path, help="write the tables to this file")
    parser.add_argument("--chart", type=Path, help="write the chart (SVG) to this file")
    arguments = parser.parse_args()
    works = [
        name for each in arguments.work for name in (["mlp64", "mlp1"] if each == "mlp" else [each])
    ]
    python = None if arguments.alone else arguments.reference or reference_python()
    if python is not None and not python.exists():
        raise SystemExit(f"{python} does not exist; make parity builds .venv-reference")
    names = [name for name in arguments.sides if python is not None or KINDS[name].api == OURS]
    rows: list[Row] = []
    for threads in arguments.threads:
        for label in works:
            absolute = None if python is None else python.absolute()
            fresh = measure(label, absolute, names, threads, arguments.rounds)
            print(markdown(fresh), flush=True)
            rows += fresh
    text = json.dumps([asdict(each) for each in rows], indent=1) + "\n"
    for path, content in (
        (arguments.json, text),
        (arguments.markdown, markdown(rows)),
        (arguments.chart, chart(rows)),
    ):
        if path is not None:
            path.write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main()
