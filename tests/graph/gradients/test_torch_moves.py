"""Moving data beside PyTorch (tests/golden/moves_torch.npz, made by tools/make_torch_moves.py)."""

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
    with np.load(GOLDEN / "moves_torch.npz") as stored:
        arrays = {name: stored[name] for name in stored.files}
    return [(name, attrs, reads) for name, attrs, reads in json.loads(str(arrays["table"]))], arrays


TABLE, ARRAYS = _stored()
TOLERANCE = 1e-5


def gradients(index: int) -> Arrays:
    """Ours, by input name."""
    name, attrs, reads = TABLE[index]
    given = {key: ARRAYS[f"{index}.in.{key}"] for key in reads}
    floats = {key: value for key, value in given.items() if value.dtype.kind == "f"}
    constants = {key: value for key, value in given.items() if key not in floats}
    makes = "y indices" if name.startswith("TopK") else "y"
    row = single(name, floats, " ".join(reads), makes, attrs, constants=constants, outputs=("y",))
    return run_gradients(row, {"y": ARRAYS[f"{index}.r"]})


def check(index: int, got: Arrays, scale: float = 1.0) -> None:
    for key, value in got.items():
        wanted = ARRAYS[f"{index}.grad.{key}"] * scale
        assert value.shape == wanted.shape
        error = np.linalg.norm(value - wanted) / np.linalg.norm(wanted)
        assert error <= TOLERANCE, f"{TABLE[index][0]}: d{key} is {error:.1e} of its norm away"


@pytest.mark.parametrize("index", range(len(TABLE)), ids=[name for name, _, _ in TABLE])
def test_gradients_are_pytorchs(index: int) -> None:
    got = gradients(index)
    assert {f"{index}.grad.{key}" for key in got} == {
        name for name in ARRAYS if name.startswith(f"{index}.grad.")
    }
    check(index, got)
    with pytest.raises(AssertionError, match="of its norm away"):
        check(index, got, 1 + 3 * TOLERANCE)
