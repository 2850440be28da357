"""A checkpoint's low-rank adapter as onnxruntime's adapter file."""

from __future__ import annotations

import os
from collections.abc import Sequence

from edge_train import adapter
from edge_train.checkpoint.source import Readable
from edge_train.convert import intake


def to_adapter(
    source: Readable,
    destination: str | os.PathLike[str],
    names: Sequence[str] = adapter.LOW_RANK,
    *,
    adapter_version: int = 1,
    model_version: int = 1,
) -> tuple[str, ...]:
    """Write the parameters that ``names`` (names or patterns) fit; returns their names.

    Raises ValueError for a name that no parameter has, NominalStateError, CheckpointError and its
    children, OSError.
    """
    with intake.opened_full(source, "an adapter") as checkpoint:
        tensors = intake.parameters(checkpoint)
        chosen = adapter.named(tensors, names)
        kept = [tensors[name] for name in chosen]
        adapter.write(kept, destination, adapter_version, model_version)
    return tuple(chosen)
