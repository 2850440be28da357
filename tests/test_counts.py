"""Whole numbers that callers give, those of NumPy among them."""

from __future__ import annotations

import numpy as np
import pytest
from support.zoo import ZOO

from edge_train import memory
from edge_train.counts import check_count, whole_number
from edge_train.schedules import plateau
from edge_train.training.checks import goal


@pytest.mark.parametrize("value", [250, np.uint8(250), np.int64(250), np.array(250, np.uint8)])
def test_every_integer_is_one_of_python(value: int) -> None:
    for count in (whole_number("n", value), check_count("n", value, 250)):
        assert type(count) is int
        assert count + 20 == 270
    with pytest.raises(ValueError, match="n must be >= 251, got 250"):
        check_count("n", value, 251)


@pytest.mark.parametrize("value", [True, np.True_, 1.0, np.float32(1), "1", None, np.zeros(2)])
def test_what_is_no_integer(value: object) -> None:
    with pytest.raises(TypeError, match="n must be an integer, got "):
        whole_number("n", value)  # type: ignore[arg-type]


def test_a_goal_outlasts_the_numbers_that_it_was_given() -> None:
    made = goal(np.uint8(9), np.uint8(200), np.uint8(10), "loss", np.uint8(3))
    assert made.steps is not None
    assert made.evaluate_every is not None
    assert 1000 % made.evaluate_every == 0
    assert {type(n) for n in (made.epochs, made.steps, made.evaluate_every)} == {int}
    assert plateau(1.0, warmup=np.uint8(200)).rate(100) == 0.5


def test_sizes_of_an_estimate_are_counts() -> None:
    with pytest.raises(TypeError, match=r"sizes: x.0 must be an integer, got 2.5"):
        memory.estimate(ZOO["mlp_CrossEntropyLoss"].folder, 4, sizes={"x.0": 2.5})  # type: ignore[dict-item]
