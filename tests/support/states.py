"""Checkpoints with everything in them: moments, properties, doc strings, odd types."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.training import session_of
from support.zoo import SEIZURE, ZOO, Artifacts

from edge_train import dtypes
from edge_train.checkpoint import files
from edge_train.checkpoint.format import Checkpoint, Group
from edge_train.checkpoint.state import CheckpointState
from edge_train.checkpoint.tensor import Tensor

_SMOKE = ("conv_bn_maxpool_gap", "frozen_backbone_only_head", "mlp_MSELoss", "seizure")


def _param(case: Artifacts) -> Any:
    return pytest.param(case, id=case.name, marks=() if case.name in _SMOKE else pytest.mark.slow)


#: for parametrize: the whole zoo, of which all but a few are slow
ZOO_CASES = tuple(map(_param, ZOO.values()))
ALL_CASES = (*ZOO_CASES, _param(SEIZURE))

#: every type that NumPy has and a checkpoint holds
ALL_TYPES = ("f4", "f8", "f2", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?")


def trained(case: Artifacts, path: Path, steps: int = 2) -> Path:
    """The checkpoint after some steps, with moments, properties and a schedule's private words."""
    module, optimizer = session_of(case)
    for _ in range(steps):
        module.lazy_reset_grad()
        module(**case.feed)
        optimizer.step()
    module.state.properties["epoch"] = 3
    module.state.properties["best"] = 0.1
    module.state.properties["who"] = "Zoë \u2603"
    CheckpointState.save_checkpoint(module.state, path)
    return path


def rich() -> Checkpoint:
    """Every type, a scalar, an empty tensor, names that are none of a file, special values."""
    rng = np.random.default_rng(3)
    frozen = [
        Tensor.of(f"odd {kind}/x:0", rng.integers(0, 2, (3, 5)).astype(kind)) for kind in ALL_TYPES
    ]
    special = np.array([np.nan, np.inf, -np.inf, -0.0, 1e-45], np.float32)
    half = Tensor("half", dtypes.BFLOAT16, (3,), np.array([0x3F80, 0x4049, 0xC000], np.uint16))
    trainable = (
        replace(Tensor.of("w", special), doc_string="as in the model"),
        Tensor.of("empty", np.empty((0, 4), np.float32)),
        Tensor.of("scalar", np.array(2.5, np.float32)),
        Tensor.of("../../etc/passwd", np.ones((2, 2), np.float32)),
    )
    moments = (("w", (Tensor.of("momentum0", special), Tensor.of("momentum1", special))),)
    groups = (Group("group0", 2**40, 0.25, moments), Group("other", 0, 0.0, ()))
    properties = {"epoch": 2**62, "zero": 0, "rate": 0.5, "nan": float("nan"), "edge_train.x": "y"}
    return Checkpoint(trainable, (half, *frozen), groups=groups, properties=properties)


def save(checkpoint: Checkpoint, path: Path) -> Path:
    """Written as any save does."""
    files.write(checkpoint, path)
    return path


def save_arrays(path: Path, frozen: dict[str, Any] | None = None, **arrays: Any) -> Path:
    """A checkpoint of float32 (or other NumPy) arrays."""
    parts = (
        tuple(Tensor.of(n, np.asarray(a, None if hasattr(a, "dtype") else np.float32))
              for n, a in part.items())
        for part in (arrays, frozen or {})
    )  # fmt: skip
    return save(Checkpoint(*parts), path)


def values(path: Path) -> dict[str, np.ndarray]:
    """The parameters of a checkpoint."""
    state = CheckpointState.load_checkpoint(path)
    return {name: parameter.data for name, parameter in state.parameters}
