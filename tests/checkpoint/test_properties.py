"""Properties: exact types, and the value that a reload gives (case U043)."""

from __future__ import annotations

import math
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_train.checkpoint.properties import Properties
from edge_train.checkpoint.state import CheckpointState


class Colour(IntEnum):
    RED = 4


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        (3, 3),
        (0, 0),
        (-(2**63), -(2**63)),
        (2**63 - 1, 2**63 - 1),
        (True, 1),
        (np.bool_(False), 0),
        (np.int8(-5), -5),
        (np.uint64(7), 7),
        (Colour.RED, 4),
        (2.5, 2.5),
        (0.0, 0.0),
        (-0.0, -0.0),
        (0.1, 0.10000000149011612),
        (1e-50, 0.0),
        (math.inf, math.inf),
        (math.nan, math.nan),
        (np.float32(2.5), 2.5),
        (np.float16(0.5), 0.5),
        (np.float64(2.5), 2.5),
        (np.array(0.1, np.float32), 0.10000000149011612),
        (np.array(2.5, np.float16), 2.5),
        (np.array(0.1), 0.10000000149011612),
        (np.array(-7, np.int32), -7),
        (np.array(True), 1),
        ("text", "text"),
        ("", ""),
        ("nul \0 and ü 漢", "nul \0 and ü 漢"),
        (np.str_("numpy"), "numpy"),
        (b"bytes", "bytes"),
        (bytearray(b"array"), "array"),
    ],
)
def test_what_is_set_is_what_a_reload_gives(given: Any, stored: Any, tmp_path: Path) -> None:
    state = CheckpointState()
    state.properties["p"] = given
    CheckpointState.save_checkpoint(state, tmp_path / "saved")
    loaded = CheckpointState.load_checkpoint(tmp_path / "saved").properties["p"]
    for value in (state.properties["p"], loaded):
        assert type(value) is type(stored)
        assert repr(value) == repr(stored)  # tells -0.0 from 0.0 and takes nan


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (None, TypeError, "property 'p' takes int, float or str, got NoneType"),
        ([1], TypeError, "got list"),
        (np.zeros(1), TypeError, r"got ndarray of shape \(1,\)"),
        (np.array("text"), TypeError, "got ndarray"),
        (np.array(1e300), OverflowError, "does not fit in float32"),
        (1j, TypeError, "got complex"),
        (2**63, OverflowError, "does not fit in int64; store it as str"),
        (-(2**63) - 1, OverflowError, "does not fit in int64"),
        (np.uint64(2**63), OverflowError, "does not fit in int64"),
        (1e300, OverflowError, "does not fit in float32"),
        (b"\xff", ValueError, "not UTF-8"),
        ("\ud800", ValueError, "UTF-8 cannot hold"),
    ],
)
def test_what_cannot_be_stored_is_refused(value: Any, error: type, text: str) -> None:
    properties = Properties()
    properties["p"] = 1
    with pytest.raises(error, match=text):
        properties["p"] = value
    assert list(properties) == [("p", 1)]


def test_names_are_checked() -> None:
    properties = Properties()
    with pytest.raises(TypeError, match="a property name is a str, got int"):
        properties[3] = 1  # type: ignore[index]
    with pytest.raises(ValueError, match="are reserved"):
        properties["edge_train.mine"] = 1
    with pytest.raises(ValueError, match="UTF-8 cannot hold"):
        properties["\udc00"] = 1
    properties[""] = 1
    assert "" in properties


def test_it_is_a_mapping() -> None:
    properties = Properties()
    properties["b"] = 1
    properties["a"] = "x"
    properties["b"] = 2.0
    assert list(properties) == [("a", "x"), ("b", 2.0)]
    assert len(properties) == 2
    assert repr(properties) == "Properties({'a': 'x', 'b': 2.0})"
    with pytest.raises(KeyError, match="property 'epohc' not found"):
        properties["epohc"]
    del properties["a"]
    assert "a" not in properties
    with pytest.raises(KeyError, match="property 'a' not found"):
        del properties["a"]
