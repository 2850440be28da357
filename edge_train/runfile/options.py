"""Every option of a run, by section, as the run file has them.

A field's default is the option's; ``about`` is its line in ``edge-train train --options``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edge_train.conditions import Limits


def option(default: Any, about: str) -> Any:
    """A field of a section."""
    if isinstance(default, (dict, list)):
        return field(default_factory=lambda: type(default)(default), metadata={"about": about})
    return field(default=default, metadata={"about": about})


@dataclass(frozen=True)
class Data:
    """[data]: where the rows come from, and how they fit the model's inputs."""

    train: Path | None = option(
        None, "a .npz, .npy, .csv or .tsv file, a folder of .npy or of images"
    )
    evaluation: Path | None = option(None, "the same for evaluation")
    rows: tuple[int, ...] | None = option(None, "[first, end): the part of train to use")
    evaluation_rows: tuple[int, ...] | None = option(None, "[first, end) of evaluation")
    split: float = option(0.0, "share of train that is held out for evaluation instead")
    inputs: dict[str, str] = option({}, "model input = array of the data (default: the same name)")
    scale: dict[str, float] = option({}, "model input = factor")
    label: str | int | tuple[str, ...] = option(-1, "CSV: the label's column(s), by name or number")
    features: tuple[str, ...] = option((), "CSV: the columns to learn from (default: all others)")
    size: int | tuple[int, ...] | None = option(None, "images: height and width (the model's)")
    channels: int | None = option(None, "images: 1 or 3 (the model's)")
    mean: tuple[float, ...] = option((0.0,), "images: subtracted from pixel / 255, by channel")
    std: tuple[float, ...] = option((1.0,), "images: what that is divided by, by channel")
    unreadable: str = option("stop", "images: stop at one that cannot be read, or skip it")

    def __post_init__(self) -> None:
        if self.unreadable not in ("stop", "skip"):
            raise ValueError(f"unreadable: expected stop or skip, got '{self.unreadable}'")


@dataclass(frozen=True)
class Training:
    """[training]: how long, and in which steps."""

    epochs: int | None = option(None, "passes over the data")
    steps: int | None = option(None, "updates; with epochs, whichever comes first")
    batch_size: int = option(32, "rows of an update")
    micro_batch: int | None = option(None, "rows that go through the graph at once (all)")
    seed: int = option(0, "of the order of rows and of Dropout")
    shuffle: bool = option(True, "another order of the rows in each epoch")
    drop_last: bool = option(False, "leave out the smaller batch at an epoch's end")
    max_skipped: int = option(100, "updates in a row with a NaN or infinity that end the run")
    trainable: tuple[str, ...] | None = option(None, "names or patterns of what is trained (all)")
    kernels: str = option("auto", "auto, portable or fused")
    recompute: str | tuple[str, ...] | None = option(
        None, "auto, or patterns of tensors: activations are made again instead of kept"
    )
    fuse_optimizer: bool = option(False, "update each weight within the backward pass")
    threads: int | None = option(None, "for onnxruntime and the kernels (CPUs allowed, at most 4)")
    nice: int = option(0, "added to the process's nice level, 0 to 19")

    def __post_init__(self) -> None:
        if self.threads is not None and self.threads < 1:
            raise ValueError(f"threads: expected 1 or more, got {self.threads}")
        if not 0 <= self.nice <= 19:
            raise ValueError(f"nice: expected 0 to 19, got {self.nice}")


@dataclass(frozen=True)
class Rate:
    """[schedule]: the learning rate over the steps."""

    kind: str = option("constant", "constant, linear, cosine, one_cycle, step, plateau or join")
    rate: float | None = option(None, "the (highest) rate; needed, but for join")
    warmup: int = option(0, "steps of a linear rise before")
    total: int | None = option(None, "linear, cosine, one_cycle: steps to the end (the run's)")
    floor: float = option(0.0, "cosine: the last rate")
    rise: float = option(0.3, "one_cycle: the share of steps that go up")
    start_factor: float = option(0.04, "one_cycle: the first rate, in parts of rate")
    end_factor: float = option(4e-6, "one_cycle: the last rate, in parts of rate")
    every: int | None = option(None, "step: steps between two cuts of the rate")
    factor: float = option(0.1, "step, plateau: what the rate is multiplied by")
    patience: int = option(5, "plateau: evaluations without progress before a cut")
    threshold: float = option(1e-4, "plateau: the least progress, in parts of the best value")
    stop_after: int | None = option(None, "plateau: cuts in vain that end the run (never)")
    target: float | None = option(None, "any kind: the watched metric's value that ends the run")
    parts: tuple[dict[str, Any], ...] = option((), "join: [[schedule.parts]] with their steps")


@dataclass(frozen=True)
class Update:
    """[optimizer]: settings other than those of the optimizer graph."""

    algorithm: str | None = option(None, "adamw, sgd or lion (the graph's)")
    moments: str | None = option(None, "8bit: adamw's moments in a quarter of the memory")
    betas: tuple[float, ...] | None = option(None, "adamw, lion")
    eps: float | None = option(None, "adamw")
    momentum: float | None = option(None, "sgd")
    nesterov: bool | None = option(None, "sgd")
    weight_decay: float | None = option(None, "of the weights")
    max_grad_norm: float | None = option(None, "gradients are clipped to this norm")


@dataclass(frozen=True)
class Judging:
    """[evaluation]: how the model is judged, and which weights are kept as the best."""

    every: int | None = option(None, "steps between two evaluations (after each epoch)")
    metrics: tuple[str, ...] = option(
        (),
        "accuracy, top5, f1, mae, rmse, multilabel_accuracy, multilabel_exact, "
        "multilabel_f1_micro, multilabel_f1_macro",
    )
    best: str | None = option(
        None, "the metric that chooses the best weights and that schedules watch (the first)"
    )
    prediction: str | None = option(
        None, "the eval graph's tensor that is judged (found by itself)"
    )
    target: str | None = option(None, "the input it is compared with (the last one)")


@dataclass(frozen=True)
class Saving:
    """[saving]: what a power cut may cost."""

    every: float = option(300.0, "seconds between two saves")


@dataclass(frozen=True)
class Memory:
    """[memory]: a limit for what the training adds to the idle process."""

    budget: str | int | None = option(None, "like 200MB; chooses the micro-batch, or refuses")
    sizes: dict[str, int] = option({}, "free axis of the model's inputs = its size")


@dataclass(frozen=True)
class Display:
    """[progress]: what is shown."""

    show: str = option("auto", "auto (a bar on a terminal), bar, lines or none")
    every: float = option(60.0, "seconds between two lines")
    log: bool = option(True, "keep metrics.jsonl in the run folder, for edge-train report")


@dataclass(frozen=True)
class Options:
    """A run file. Paths in it are relative to its folder."""

    artifacts: Path | None = option(None, "the folder of training_model.onnx and so on")
    folder: Path | None = option(None, "the run folder: states, best weights, log")
    prefix: str = option("", "what the artifacts' file names begin with")
    checkpoint: Path | None = option(None, "the weights to start from (artifacts/checkpoint)")
    data: Data = field(default_factory=Data)
    training: Training = field(default_factory=Training)
    schedule: Rate = field(default_factory=Rate)
    optimizer: Update = field(default_factory=Update)
    evaluation: Judging = field(default_factory=Judging)
    saving: Saving = field(default_factory=Saving)
    memory: Memory = field(default_factory=Memory)
    governor: Limits = field(default_factory=Limits)
    progress: Display = field(default_factory=Display)
