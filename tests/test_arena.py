"""The arena: layout, views, alignment, moments on demand."""

from __future__ import annotations

import numpy as np
import pytest

from edge_train.arena import Arena

LAYOUT = [("w1", (4, 3)), ("b1", (3,)), ("scale", ()), ("empty", (0, 5)), ("w2", (1, 2, 2))]


@pytest.fixture
def arena() -> Arena:
    return Arena(LAYOUT)


def test_parameters_lie_side_by_side_in_the_order_given(arena: Arena) -> None:
    assert arena.names == ("w1", "b1", "scale", "empty", "w2")
    assert [arena.slot(name) for name in arena.names] == [
        slice(0, 12), slice(12, 15), slice(15, 16), slice(16, 16), slice(16, 20)
    ]  # fmt: skip
    assert arena.size == 20
    assert arena.weights.shape == arena.gradients.shape == (20,)
    assert arena.weights.dtype == arena.gradients.dtype == np.float32


def test_a_view_has_the_shape_and_shares_the_memory(arena: Arena) -> None:
    arena.view(arena.weights, "b1")[...] = [1, 2, 3]
    arena.weights[16:20] = [4, 5, 6, 7]
    assert arena.weights[12:15].tolist() == [1, 2, 3]
    assert arena.view(arena.weights, "w2").tolist() == [[[4, 5], [6, 7]]]
    assert arena.view(arena.gradients, "b1").tolist() == [0, 0, 0]
    for name, shape in LAYOUT:
        assert arena.view(arena.weights, name).shape == arena.shape(name) == shape


def test_buffers_start_on_a_cache_line() -> None:
    for size in range(1, 40):
        arena = Arena([("w", (size,))])
        for buffer in (arena.weights, arena.gradients, arena.moment(0), arena.moment(1)):
            assert buffer.ctypes.data % 64 == 0
            assert buffer.flags.c_contiguous
            assert buffer.flags.writeable


def test_moments_are_made_once_when_first_asked_for(arena: Arena) -> None:
    assert not arena.has_moment(0)
    first = arena.moment(0)
    assert first.tolist() == [0.0] * 20
    assert arena.moment(0) is first
    assert arena.has_moment(0)
    assert not arena.has_moment(1)


def test_an_empty_arena_has_empty_buffers() -> None:
    arena = Arena([])
    assert (arena.size, arena.names, arena.weights.size) == (0, (), 0)


def test_names(arena: Arena) -> None:
    assert "w1" in arena
    assert "w9" not in arena
    with pytest.raises(KeyError, match="'w9' is not in the arena"):
        arena.slot("w9")
    with pytest.raises(KeyError, match="'w9' is not in the arena"):
        arena.view(arena.weights, "w9")


@pytest.mark.parametrize(
    ("layout", "text"),
    [([("w", (2,)), ("w", (3,))], "'w' appears twice"), ([("w", (2, -1))], r"shape \(2, -1\)")],
)
def test_a_layout_that_cannot_be_is_refused(
    layout: list[tuple[str, tuple[int, ...]]], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        Arena(layout)
