"""Layers beside PyTorch's (tests/golden/layers_torch.npz, made by tools/make_torch_layers.py)."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.gradients import run_gradients, single
from support.zoo import GOLDEN

Arrays = dict[str, NDArray[Any]]


def _stored() -> tuple[list[tuple[str, dict[str, Any], list[str]]], Arrays]:
    with np.load(GOLDEN / "layers_torch.npz") as stored:
        arrays = {name: stored[name] for name in stored.files}
    return [(name, attrs, reads) for name, attrs, reads in json.loads(str(arrays["table"]))], arrays


TABLE, ARRAYS = _stored()
#: distance to PyTorch's gradient over its norm
TOLERANCE = 1e-5

EVERY = [
    pytest.param(index, id=name, marks=[pytest.mark.slow] if ":" in name else [])
    for index, (name, _, _) in enumerate(TABLE)
]


def gradients(index: int) -> Arrays:
    """Ours, by input name."""
    name, attrs, reads = TABLE[index]
    inputs = {key: ARRAYS[f"{index}.in.{key}"] for key in reads}
    wanted = tuple(key for key in reads if f"{index}.grad.{key}" in ARRAYS)
    sizes = {"sizes": inputs.pop("sizes")} if "sizes" in inputs else {}
    order = "x _ _ sizes" if sizes else " ".join(reads)
    row = single(name, inputs, order, attrs=attrs, constants=sizes, wanted=wanted)
    return run_gradients(row, {"y": ARRAYS[f"{index}.r"]})


def check(index: int, got: Arrays, scale: float = 1.0) -> None:
    for key, value in got.items():
        wanted = ARRAYS[f"{index}.grad.{key}"] * scale
        assert value.shape == wanted.shape
        error = np.linalg.norm(value - wanted) / np.linalg.norm(wanted)
        assert error <= TOLERANCE, f"{TABLE[index][0]}: d{key} is {error:.1e} of its norm away"


@pytest.mark.parametrize("index", EVERY)
def test_gradients_are_pytorchs(index: int) -> None:
    got = gradients(index)
    check(index, got)
    with pytest.raises(AssertionError, match="of its norm away"):
        check(index, got, 1 + 3 * TOLERANCE)
