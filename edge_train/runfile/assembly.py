"""From Options to a Trainer: loads the artifacts, opens the data, makes the schedule."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from edge_train.data import Rows, Subset, open_path
from edge_train.data.classes import CLASSES, classes_in, classes_of, numbered_like
from edge_train.errors import ArtifactError, DataError
from edge_train.governor import Governor
from edge_train.graph import ir
from edge_train.module import Module
from edge_train.optimizer import Optimizer
from edge_train.progress import Progress
from edge_train.runfile.options import Data, Options, Training
from edge_train.runfile.rates import schedule_of
from edge_train.runfile.reading import RunFileError
from edge_train.trainer import Trainer
from edge_train.training.checks import check_fits, evaluation_inputs
from edge_train.training.evaluation import LOSS, Evaluator
from edge_train.training.feeds import Feeder
from edge_train.training.loading import Loaded, Wanted, load
from edge_train.training.order import Reader


def trainer_of(options: Options, *, fresh: bool = False) -> Trainer:
    """The Trainer that a run file asks for.

    RunFileError names the key that is missing or wrong; the errors of artifacts and data pass.
    """
    _apply_process(options)
    loaded = loaded_of(options)
    training, judging = options.training, options.evaluation
    held, kept = sources(options, loaded.module)
    _check_evaluates(options, loaded.module, held)
    return Trainer(
        loaded.module,
        loaded.optimizer,
        kept,
        schedule=schedule_of(options.schedule),
        batch_size=training.batch_size,
        micro_batch=loaded.micro_batch(training.micro_batch),
        epochs=training.epochs,
        steps=training.steps,
        seed=training.seed,
        shuffle=training.shuffle,
        drop_last=training.drop_last,
        inputs=options.data.inputs,
        scale=options.data.scale,
        evaluation=held,
        metrics=judging.metrics,
        evaluate_every=judging.every,
        best=judging.best,
        judged=loaded.judged,
        folder=options.folder,
        save_every=options.saving.every,
        fresh=fresh,
        max_skipped=training.max_skipped,
        governor=Governor(options.governor),
        progress=_progress(options),
        notes=() if loaded.plan is None else loaded.plan.notes,
    )


def _check_evaluates(options: Options, module: Module, held: Rows | None) -> None:
    """RunFileError where the evaluation lacks its data or its graph."""
    judging = options.evaluation
    if held is None and (judging.metrics or judging.best not in (None, LOSS)):
        key = "metrics" if judging.metrics else "best"
        raise RunFileError(
            f"evaluation.{key}: there is nothing to evaluate on; give data.evaluation or data.split"
        )
    if held is not None:
        try:
            evaluation_inputs(module)
        except ArtifactError:
            raise RunFileError(
                f"data.evaluation: '{options.artifacts}' has no {options.prefix}eval_model.onnx to "
                "evaluate with"
            ) from None


def evaluator_of(options: Options) -> Evaluator:
    """What ``edge-train eval`` runs: the weights on the evaluation data, else on the split.

    RunFileError where there is no such data.
    """
    _apply_process(options)
    loaded = loaded_of(options)
    rows = evaluation_rows(options, loaded.module)
    if rows is None and options.data.split:
        rows, _ = split_rows(options, loaded.module)
    if rows is None:
        raise RunFileError("data.evaluation: say what to evaluate on")
    classes = _classes(options, loaded.module)
    source = numbered_like(rows, classes) if classes else rows
    data = options.data
    feeder = Feeder(evaluation_inputs(loaded.module), data.inputs, data.scale)
    training, fixed = options.training, feeder.fixed_rows
    size = fixed or loaded.micro_batch(training.micro_batch) or training.batch_size
    reader = Reader(source, size, 0, shuffle=False, drop_last=fixed is not None)
    feeder = feeder.for_batches(reader)
    check_fits(feeder, reader)
    return Evaluator(loaded.module, reader, feeder, options.evaluation.metrics, loaded.judged)


def _classes(options: Options, module: Module) -> tuple[str, ...]:
    """The classes that the weights learned, else those of the training data."""
    learned = classes_in(module.state.private.get(CLASSES))
    if learned or options.data.train is None or not options.data.train.exists():
        return learned
    return classes_of(_training_rows(options, module))


def _apply_process(options: Options) -> None:
    if options.training.threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(options.training.threads)
    if options.training.nice and hasattr(os, "nice"):
        os.nice(options.training.nice)


def loaded_of(options: Options) -> Loaded:
    """Module and Optimizer of the artifacts; the eval graph gives what metrics judge."""
    if options.artifacts is None:
        raise RunFileError("artifacts: say where the training artifacts are")
    training, judging = options.training, options.evaluation
    settings = {f.name: getattr(options.optimizer, f.name) for f in fields(options.optimizer)}
    given = {name: settings.pop(name) for name in ("algorithm", "moments")}
    loaded = load(
        Wanted(
            options.artifacts,
            options.prefix,
            options.checkpoint,
            compares=bool(judging.metrics),
            prediction=judging.prediction,
            target=judging.target,
            trainable=training.trainable,
            kernels=training.kernels,
            module=_module_options(training),
            optimizer={name: value for name, value in given.items() if value is not None},
            batch=training.batch_size,
            budget=options.memory.budget,
            sizes=options.memory.sizes,
        )
    )
    for name, value in settings.items():
        if value is not None:
            _set(loaded.optimizer, name, value)
    return loaded


def _module_options(training: Training) -> dict[str, Any]:
    """What Module is given beside ``trainable`` and ``kernels``, where it is not the default."""
    found: dict[str, Any] = {}
    if training.recompute is not None:
        found["recompute"] = training.recompute
    if training.fuse_optimizer:
        found["fuse_optimizer"] = True
    return found


def _set(optimizer: Optimizer, name: str, value: Any) -> None:
    try:
        setattr(optimizer, name, value)
    except (AttributeError, ValueError, TypeError) as error:
        raise RunFileError(f"optimizer.{name}: {error}") from error


# ---- data ------------------------------------------------------------------------------------


def sources(options: Options, module: Module) -> tuple[Rows | None, Rows]:
    """(evaluation rows or None, training rows)."""
    if options.data.split and options.data.evaluation:
        raise RunFileError("data.split: evaluation has data of its own; give one of the two")
    _check_keys(options.data)
    if options.data.split:
        return split_rows(options, module)
    return evaluation_rows(options, module), _training_rows(options, module)


def split_rows(options: Options, module: Module) -> tuple[Rows, Rows]:
    """(held out, trained on): ``data.split`` of the training rows, the same for the same seed."""
    return _split(_training_rows(options, module), options.data.split, options.training.seed)


def _training_rows(options: Options, module: Module) -> Rows:
    data = options.data
    if data.train is None:
        raise RunFileError("data.train: say where the training data is")
    return _part(_opened("train", data.train, data, module), data.rows, "data.rows")


def evaluation_rows(options: Options, module: Module) -> Rows | None:
    """The rows of ``data.evaluation``, None where there is none."""
    data = options.data
    if data.evaluation is None:
        return None
    rows = _opened("evaluation", data.evaluation, data, module)
    return _part(rows, data.evaluation_rows, "data.evaluation_rows")


def _opened(key: str, path: Path, data: Data, module: Module) -> Rows:
    try:
        return open_path(path, **_reader_options(path, data, module))
    except (DataError, FileNotFoundError) as error:
        raise RunFileError(f"data.{key}: {error}") from error


#: the keys that only some readers know
_KEYS = {
    "images": ("size", "channels", "mean", "std", "unreadable"),
    "tables": ("label", "features"),
    "arrays": (),
}


def _check_keys(data: Data) -> None:
    """RunFileError for a key that says nothing about the data given."""
    paths = [path for path in (data.train, data.evaluation) if path is not None]
    if not paths:
        return
    known = {key for path in paths for key in _KEYS[_reader(path)]}
    default = Data()
    for key in (key for keys in _KEYS.values() for key in keys):
        if key not in known and getattr(data, key) != getattr(default, key):
            raise RunFileError(f"data.{key}: means nothing to '{paths[0]}'")


def _reader(path: Path) -> str:
    if path.suffix.lower() in (".csv", ".tsv"):
        return "tables"
    return "images" if path.is_dir() and not any(path.glob("*.npy")) else "arrays"


def _reader_options(path: Path, data: Data, module: Module) -> dict[str, Any]:
    reader = _reader(path)
    if reader == "images":
        shape = _image_shape(module.input_values()[0])
        size = data.size if data.size is not None else shape[1:]
        if size == ():
            raise RunFileError("data.size: the model does not say how large images are; say it")
        channels = data.channels if data.channels is not None else (shape[0] if shape else 3)
        skips = data.unreadable == "skip"
        options = {"size": size, "channels": channels, "mean": data.mean, "std": data.std}
        return {**options, "skips": skips}
    if reader == "tables":
        label = list(data.label) if isinstance(data.label, tuple) else data.label
        return {"label": label, "features": data.features or None}
    return {}


def _image_shape(value: ir.Value) -> tuple[int, ...]:
    """(channels, height, width), () where the graph leaves them open."""
    dims = (value.dims or ())[1:]
    known = tuple(dim for dim in dims if isinstance(dim, int) and dim > 0)
    return known if len(known) == 3 else ()


def _part(rows: Rows, part: tuple[int, ...] | None, key: str) -> Rows:
    if part is None:
        return rows
    if len(part) != 2 or not 0 <= part[0] < part[1] <= len(rows):
        raise RunFileError(
            f"{key}: expected [first, end) within the {len(rows)} rows, got {list(part)}"
        )
    return Subset(rows, np.arange(*part, dtype=np.int64))


def _split(rows: Rows, share: float, seed: int) -> tuple[Rows, Rows]:
    held = round(len(rows) * share)
    if not 0 < held < len(rows):
        raise RunFileError(f"data.split: {share} of {len(rows)} rows leaves one side empty")
    order = np.random.default_rng([seed, 2**31]).permutation(len(rows)).astype(np.int64)
    return Subset(rows, np.sort(order[:held])), Subset(rows, np.sort(order[held:]))


def _progress(options: Options) -> Progress | None:
    display = options.progress
    shows = {"auto": None, "bar": True, "lines": False, "none": False}
    if display.show not in shows:
        raise RunFileError(f"progress.show: expected one of {list(shows)}, got '{display.show}'")
    log = None
    if options.folder is not None and display.log:
        log = options.folder / "metrics.jsonl"
    return Progress(log, bar=shows[display.show], quiet=display.show == "none", every=display.every)
