"""Lists, tuples and numbers as inputs: arrays of the declared dtype, then checked as any other."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnxruntime
import pytest
from support.training import module_of
from support.zoo import ZOO

from edge_train import dtypes
from edge_train.api import Module
from edge_train.errors import ShapeMismatch
from edge_train.graph import ir
from edge_train.inputs import InputSpec

CASE = ZOO["conv_bn_maxpool_gap"]
VALUE = onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros(1, np.float32))
X, LABELS = CASE.feed["x"], CASE.feed["labels"]


@pytest.fixture(scope="module")
def module() -> Module:
    return module_of(CASE)


@pytest.mark.parametrize("kind", [list, tuple, lambda rows: [np.int32(row) for row in rows]])
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_labels_and_data_in_lists_are_those_in_arrays(kind: Any, mode: str) -> None:
    first, second = module_of(CASE).train(mode == "train"), module_of(CASE).train(mode == "train")
    expected = first(X, LABELS)
    assert second(X, kind(LABELS.tolist())) == expected
    if mode == "train":
        np.testing.assert_array_equal(second.arena.gradients, first.arena.gradients)


def test_every_input_may_be_one_in_turn_with_arrays() -> None:
    first, second = module_of(CASE).eval(), module_of(CASE).eval()
    expected = [first(X, LABELS), first(X[:1], LABELS[:1])]
    assert second(X.tolist(), labels=LABELS.tolist()) == expected[0]
    assert second(X, LABELS) == expected[0]
    assert second([X[0]], LABELS[:1].tolist()) == expected[1]
    assert second(X, LABELS.tolist()) == expected[0]
    value = onnxruntime.OrtValue.ortvalue_from_numpy(X)
    assert second(value, LABELS.tolist()) == expected[0]


BAD = {
    "floats for labels": ([0.0, 1.0], TypeError, "'labels': expected int64, got a list of float64"),
    "bools for labels": ([True, False], TypeError, "expected int64, got a list of bool"),
    "text": (["0", "1"], TypeError, "expected int64, got a list of <U1"),
    "None": ((0, None), TypeError, "expected int64, got a tuple of object"),
    "ragged": ([[0], [0, 1]], ValueError, "'labels': the list makes no array"),
    "too large": ([2**63], ValueError, "'labels': 9223372036854775808 does not fit in int64"),
    "another shape": ([0, 1, 2], ShapeMismatch, "'N': 2 and 3"),
    "empty": ([], ValueError, "'labels': axis 0 .* is empty"),
    "outside": ([0, 10], IndexError, r"label 10 in 'labels' is outside 0\.\.9"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_loses_something_is_refused(name: str, module: Module) -> None:
    fed, error, text = BAD[name]
    with pytest.raises(error, match=text):
        module(X, fed)
    with pytest.raises(error, match=text):
        module(X, labels=fed)


def _bound(dtype: int, fed: object) -> np.ndarray:
    value = ir.Value("v", elem_type=dtype, dims=None)
    return np.asarray(InputSpec([value], []).bind([fed], {})["v"])


@pytest.mark.parametrize(
    ("dtype", "fed"),
    [
        (dtypes.FLOAT, 0.1),
        (dtypes.FLOAT, 3),
        (dtypes.FLOAT, [math.inf, -math.inf, 1.0]),
        (dtypes.FLOAT16, [1, 2.5]),
        (dtypes.INT32, 7),
        (dtypes.UINT8, [0, 255]),
        (dtypes.BOOL, [True, False]),
        (dtypes.BOOL, True),
        (dtypes.UINT64, [2**63, 0]),
        (dtypes.FLOAT, [2**70, 0]),
        (dtypes.DOUBLE, [[-(10**300), 0.5]]),
    ],
)
def test_the_declared_dtype_is_taken(dtype: int, fed: object) -> None:
    bound = _bound(dtype, fed)
    expected = np.asarray(fed, dtypes.NUMPY[dtype])
    assert bound.dtype == expected.dtype
    np.testing.assert_array_equal(bound, expected)


@pytest.mark.parametrize(
    ("dtype", "fed", "error", "text"),
    [
        (dtypes.FLOAT, [1e300], ValueError, r"1e\+300 does not fit in float32"),
        (dtypes.FLOAT16, 70000, ValueError, "70000 does not fit in float16"),
        (dtypes.UINT8, [-1], ValueError, "-1 does not fit in uint8"),
        (dtypes.INT32, 2**40, ValueError, "1099511627776 does not fit in int32"),
        (dtypes.INT64, [2**70, 0], ValueError, "1180591620717411303424 does not fit in int64"),
        (dtypes.INT64, [[0, 2**63]], ValueError, "'v': 9223372036854775808 does not fit in int64"),
        (dtypes.INT64, [2**63, -1], ValueError, "9223372036854775808 does not fit in int64"),
        (dtypes.INT64, [2**63, np.int64(-1)], ValueError, "9223372036854775808 does not fit"),
        (dtypes.UINT64, [2**63, -1], ValueError, "-1 does not fit in uint64"),
        (dtypes.UINT8, -(2**64), ValueError, "-18446744073709551616 does not fit in uint8"),
        pytest.param(dtypes.FLOAT, 10**400, ValueError, "an integer of 1329 bits", id="10**400"),
        (dtypes.FLOAT, [-(10**5000), 0.5], ValueError, "an integer of 16610 bits does not fit"),
        (dtypes.FLOAT, [10**100], ValueError, "'v': 1e[+]100 does not fit in float32"),
        (dtypes.INT64, [2**70, True], TypeError, "expected int64, got a list of object"),
        (dtypes.INT64, [2**70, None], TypeError, "expected int64, got a list of object"),
        (dtypes.INT64, [2**63, 0.0], TypeError, "expected int64, got a list of float64"),
        (dtypes.FLOAT, [2**70, "1"], TypeError, "expected float32, got a list of"),
        (dtypes.BOOL, [2**70], TypeError, "expected bool, got a list of object"),
        (dtypes.FLOAT, [VALUE], TypeError, "'v': expected numbers in the list, got an onnxruntime"),
        (dtypes.INT64, ([1], [VALUE, 2]), TypeError, "numbers in the tuple, got an onnxruntime"),
        (dtypes.FLOAT, [True], TypeError, "expected float32, got a list of bool"),
        (dtypes.BOOL, [1], TypeError, "expected bool, got a list of int"),
        (dtypes.STRING, ["a"], TypeError, "got a builtins.list"),
    ],
)
def test_what_the_declared_dtype_cannot_hold_is_refused(
    dtype: int, fed: object, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        _bound(dtype, fed)
