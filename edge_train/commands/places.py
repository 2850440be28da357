"""Where a command may write: not over what it reads, nor over the files beside that."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

#: the files of a set of artifacts, behind their prefix
ARTIFACTS = (
    "training_model.onnx",
    "eval_model.onnx",
    "optimizer_model.onnx",
    "checkpoint",
    "nominal_checkpoint",
)


def refuse_inputs(out: Path, *kept: Path) -> None:
    """ValueError where ``out`` is one of the files ``kept``, or the data file beside one."""
    for given in kept:
        for file in (given, given.with_name(f"{given.name}.data")):
            if given.name and _is_one(out, file):
                raise ValueError(
                    f"'{out}' is '{file}', which this command needs or which is part of what it is "
                    "given: writing there would destroy it; name another file"
                )


def artifacts_of(eval_model: Path) -> Iterator[Path]:
    """The files of the set that an eval model belongs to."""
    own = next((name for name in ARTIFACTS if eval_model.name.endswith(name)), "")
    prefix = eval_model.name.removesuffix(own) if own else ""
    yield from (eval_model.with_name(f"{prefix}{name}") for name in ARTIFACTS)


def run_files(folder: Path) -> list[Path]:
    """The files of a run in ``folder``: log, states, best weights, marker."""
    from edge_train.training.run_folder import BEST, METRICS, RUNNING, states_in

    return [folder / METRICS, folder / BEST, folder / RUNNING, *states_in(folder)]


def _is_one(one: Path, other: Path) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:  # one of them is not there
        return False
