"""Measured peaks of training beside what memory.estimate says, a process for each run.

    .venv/bin/python tools/measure_memory.py [MODEL…] [--settings NAME…] [--json FILE]

Peaks are of the resident set, above an idle process with Python, NumPy and onnxruntime loaded.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

from bench_models import Workload, bert, mlp, mobilenet, resnet18  # noqa: E402

from edge_train import memory  # noqa: E402

MODELS = {
    "mlp": lambda: mlp(64),
    "mobilenet": lambda: mobilenet(False),
    "mobilenet_bn": lambda: mobilenet(True),
    "resnet18": resnet18,
    "bert": bert,
}
#: model -> (rows at once, micro-batches of an update)
RUNS = {
    "mlp": ((64, 1), (512, 2)),
    "mobilenet": ((8, 1), (4, 8)),
    "mobilenet_bn": ((8, 1), (4, 8)),
    "resnet18": ((8, 1), (2, 4)),
    "bert": ((8, 1), (2, 4)),
}
SETTINGS = {
    "portable": memory.Choices(kernels="portable"),
    "default": memory.Choices(),
    "recompute": memory.Choices(recompute="auto"),
    "fused": memory.Choices(fuse_optimizer=True),
    "least": memory.Choices(recompute="auto", fuse_optimizer=True, moments="8bit"),
}
CHILD = """
import json, sys
import numpy as np, onnxruntime

def memory(key):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith(key))

folder, feeds, parts, words = sys.argv[1], sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4])
idle = memory("VmRSS")
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")  # the peak starts here
from edge_train.api import CheckpointState, Module, Optimizer

with np.load(feeds) as data:
    feed = [data[name] for name in data.files]
state = CheckpointState.load_checkpoint(folder + "/checkpoint")
module = Module(folder + "/training_model.onnx", state, folder + "/eval_model.onnx",
                **words["module"])
optimizer = Optimizer(folder + "/optimizer_model.onnx", module, **words["optimizer"])
losses = []
for step in range(4):
    module.lazy_reset_grad()
    losses += [float(module(*feed)) for _ in range(parts)]
    optimizer.step()
    module.eval()(*feed)
    module.train()
print(json.dumps({"peak": memory("VmHWM") - idle, "losses": losses}))
"""


@dataclass(frozen=True)
class Row:
    """One run: bytes; ``error`` is the estimate's, of the measured peak."""

    model: str
    rows: int
    parts: int
    options: str
    estimate: int
    peak: int

    @property
    def error(self) -> float:
        return self.estimate / self.peak - 1


def make_artifacts(work: Workload, folder: Path) -> None:
    """The training artifacts of a benchmark's model."""
    import onnx

    from edge_train import onnxblock
    from edge_train.artifacts import generate_artifacts

    generate_artifacts(
        onnx.load_from_string(work.model),
        requires_grad=list(work.trainable),
        frozen_params=list(work.frozen),
        loss=onnxblock.loss.CrossEntropyLoss(),
        optimizer=onnxblock.optim.AdamW(),
        artifact_directory=folder,
    )


def measure(work: Workload, folder: Path, rows: int, parts: int, choices: memory.Choices) -> Row:
    """Trains a few steps in a process of its own; ``folder`` has the artifacts."""
    feeds = folder / f"feeds_{rows}.npz"
    np.savez(feeds, *work.feed(np.random.default_rng(0), rows))
    words = json.dumps({"module": choices.module(), "optimizer": choices.optimizer()})
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(folder), str(feeds), str(parts), words],
        capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{work.name}, {rows} rows: {done.stderr[-2000:]}")
    told = memory.Footprint(memory.Files.of(folder), choices).estimate(rows, parts > 1)
    told_apart = {**choices.module(), **choices.optimizer()}.items()
    options = ", ".join(f"{key}={value}" for key, value in told_apart)
    return Row(work.name, rows, parts, options, told.total, json.loads(done.stdout)["peak"])


def measure_all(names: Sequence[str], choices: Sequence[memory.Choices]) -> Iterator[Row]:
    """Every run of the named models with each of the choices."""
    for name in names:
        work = MODELS[name]()
        with tempfile.TemporaryDirectory() as scratch:
            make_artifacts(work, Path(scratch))
            for rows, parts in RUNS[name]:
                for chosen in choices:
                    if parts > 1 and chosen.fuse_optimizer:
                        continue  # nothing to add up
                    yield measure(work, Path(scratch), rows, parts, chosen)


def table(rows: Sequence[Row]) -> str:
    """The rows as Markdown, in MB of 10^6 bytes."""
    heads = ("model", "rows at once", "micro-batches", "settings", "estimate MB", "measured MB")
    lines = [f"| {' | '.join(heads)} | error |", "|---|---|---|---|---|---|---|"]
    for row in rows:
        lines.append(
            f"| {row.model} | {row.rows} | {row.parts} | {row.options} "
            f"| {row.estimate / 1e6:.1f} | {row.peak / 1e6:.1f} | {100 * row.error:+.1f} % |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="*", help=f"of {', '.join(MODELS)} (all)")
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    arguments = parser.parse_args()
    choices = [SETTINGS[name] for name in arguments.settings]
    rows: list[Row] = []
    for row in measure_all(arguments.model or list(MODELS), choices):
        print(table([row]).splitlines()[-1], flush=True)
        rows.append(row)
    print(f"\n{table(rows)}\n\nlargest error: {max(abs(row.error) for row in rows):.1%}")
    if arguments.json is not None:
        told: list[dict[str, Any]] = [{**asdict(row), "error": row.error} for row in rows]
        arguments.json.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
