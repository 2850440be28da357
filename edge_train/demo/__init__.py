"""The demo: a small CNN learns handwritten digits from a nominal checkpoint, end to end.

nominal checkpoint -> fill -> fine-tune (AdamW, linear schedule) -> save -> reload -> export ->
accuracy of the exported file in plain onnxruntime.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

from edge_train.api import CheckpointState, LinearLRScheduler, Module, Optimizer
from edge_train.convert.nominal import to_nominal
from edge_train.metrics import Accuracy
from edge_train.session import run_model

HERE = Path(__file__).parent
TRAINING_IMAGES = 1437
LOGITS = "logits"


@dataclass(frozen=True)
class Digits:
    """UCI digits: ``x`` float32 (n, 1, 8, 8) in [0, 1], ``labels`` int64 (n,)."""

    x: np.ndarray
    labels: np.ndarray

    def batches(self, size: int, rng: np.random.Generator) -> Iterator[tuple[np.ndarray, ...]]:
        """One epoch in random order; the last batch may be smaller."""
        order = rng.permutation(len(self.labels))
        for start in range(0, len(order), size):
            rows = order[start : start + size]
            yield self.x[rows], self.labels[rows]


@dataclass(frozen=True)
class Result:
    """What a demo run measured: accuracies in [0, 1], times in seconds, memory in MB."""

    accuracy_before: float
    accuracy_after: float
    steps: int
    median_step_s: float
    peak_memory_mb: float
    exported: Path


def load_digits() -> tuple[Digits, Digits]:
    """The training and the test images that ship with the package (see demo/DATA.md)."""
    with np.load(HERE / "digits.npz") as data:
        x = (data["images"].astype(np.float32) / 16.0)[:, None]
        labels = data["labels"].astype(np.int64)
    split = TRAINING_IMAGES
    return Digits(x[:split], labels[:split]), Digits(x[split:], labels[split:])


def run(folder: Path, epochs: int = 15, batch: int = 32, seed: int = 7) -> Result:
    """Trains the demo's network in ``folder`` and returns the measurements."""
    folder.mkdir(parents=True, exist_ok=True)
    return _run(HERE / "artifacts", folder, epochs, batch, seed)


def _run(artifacts: Path, folder: Path, epochs: int, batch: int, seed: int) -> Result:
    training, test = load_digits()
    module = _filled_module(artifacts, folder)
    before = _accuracy(module, folder / "before.onnx", test)
    steps = epochs * -(-len(training.labels) // batch)
    optimizer = Optimizer(artifacts / "optimizer_model.onnx", module)
    scheduler = LinearLRScheduler(optimizer, steps // 10, steps, 1e-2)
    times = _train(module, optimizer, scheduler, training, epochs, batch, seed)
    module.state.properties["epoch"] = epochs
    CheckpointState.save_checkpoint(module.state, folder / "trained")
    reloaded = Module(
        artifacts / "training_model.onnx",
        CheckpointState.load_checkpoint(folder / "trained"),
        artifacts / "eval_model.onnx",
    )
    after = _accuracy(reloaded, folder / "digits.onnx", test)
    peak = _peak_memory_mb()
    return Result(before, after, steps, float(np.median(times)), peak, folder / "digits.onnx")


def _filled_module(artifacts: Path, folder: Path) -> Module:
    """A Module on a nominal checkpoint, filled with the buffer an application would receive."""
    graphs = (artifacts / "training_model.onnx", artifacts / "eval_model.onnx")
    full = CheckpointState.load_checkpoint(artifacts / "checkpoint")
    weights = Module(graphs[0], full, graphs[1]).get_contiguous_parameters()
    to_nominal(artifacts / "checkpoint", folder / "nominal")
    state = CheckpointState.load_checkpoint(folder / "nominal")
    module = Module(graphs[0], state, graphs[1])
    module.copy_buffer_to_parameters(weights, trainable_only=False)
    return module


def _train(
    module: Module,
    optimizer: Optimizer,
    scheduler: LinearLRScheduler,
    data: Digits,
    epochs: int,
    batch: int,
    seed: int,
) -> list[float]:
    """The loop; returns the seconds of each step."""
    rng = np.random.default_rng(seed)
    times: list[float] = []
    total = epochs * -(-len(data.labels) // batch)
    module.train()
    about = {"unit": "step", "desc": "fine-tuning", "file": sys.stderr}
    with tqdm(total=total, disable=None, **about) as bar:  # None: a bar on terminals alone
        for _ in range(epochs):
            for x, labels in data.batches(batch, rng):
                start = time.perf_counter()
                module.lazy_reset_grad()
                loss = float(np.asarray(module(x, labels)))
                optimizer.step()
                scheduler.step()
                times.append(time.perf_counter() - start)
                bar.update()
            bar.set_postfix(loss=f"{loss:.4f}", lr=f"{optimizer.get_learning_rate():.1e}")
    return times


def _accuracy(module: Module, path: Path, data: Digits) -> float:
    """Exports the inference model to ``path`` and scores it in plain onnxruntime."""
    module.export_model_for_inferencing(path, [LOGITS])
    logits = run_model(path, [data.x])[0]
    accuracy = Accuracy()
    accuracy.add(logits, data.labels)
    return accuracy.value()


def _peak_memory_mb() -> float:
    import resource  # not on Windows, where the rest of the module still imports

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0


def main(folder: Path | None = None, epochs: int = 15) -> int:
    """Runs the demo and prints its table; 0 when the network has learned (>= 97 %), else 1."""
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="edge-train-demo-") as scratch:
            return main(Path(scratch), epochs)
    start = time.perf_counter()
    result = run(folder, epochs)
    rows = (
        ("test accuracy before", f"{result.accuracy_before:.1%}"),
        ("test accuracy after", f"{result.accuracy_after:.1%}"),
        ("training steps", f"{result.steps} of 32 images"),
        ("median step", f"{result.median_step_s * 1e3:.2f} ms"),
        ("peak memory", f"{result.peak_memory_mb:.0f} MB (Python and onnxruntime included)"),
        ("whole demo", f"{time.perf_counter() - start:.1f} s"),
    )
    for name, value in rows:
        print(f"{name:>22}  {value}")
    return 0 if result.accuracy_after >= 0.97 else 1
