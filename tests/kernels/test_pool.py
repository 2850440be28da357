"""The pool: every piece once, results in order, errors passed on, forks and idle threads.

The work here is short: but for the test of that, other threads are woken for any.
"""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest

from edge_train import kernels
from edge_train.kernels import native, pool

PARTS = pool.pieces(20 * pool.PIECE + 3)
WORTH = pool.WORTH


@pytest.fixture(autouse=True)
def _any_work_is_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "WORTH", 0)


@pytest.mark.parametrize("size", [0, 1, pool.PIECE, pool.PIECE + 1])
def test_the_pieces_cover_the_buffer_once(size: int) -> None:
    parts = pool.pieces(size)
    seen = [index for part in parts for index in range(part.start, part.stop)]
    assert seen == list(range(size))
    assert len(parts) == max(1, -(-size // pool.PIECE))


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_every_part_once_and_in_order(threads: int) -> None:
    assert pool.Pool(threads).each(lambda at: (at.start, at.stop), PARTS) == [
        (part.start, part.stop) for part in PARTS
    ]


def test_the_parts_run_side_by_side() -> None:
    """All but the first, which is the caller's."""
    meeting = threading.Barrier(3, timeout=20)

    def work(at: slice) -> int:
        if at != PARTS[0]:
            meeting.wait()
        return threading.get_ident()

    who = pool.Pool(3).each(work, PARTS[:4])
    assert who[0] == threading.get_ident()
    assert len(set(who[1:])) == 3


def test_short_work_wakes_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread would be there when all is done; the first part tells."""
    monkeypatch.setattr(pool, "WORTH", WORTH)
    clock = iter([0.0, WORTH / 21, 1.0, 1.0 + WORTH / 19])  # of 20 parts that follow
    monkeypatch.setattr(pool, "perf_counter", lambda: next(clock))
    before = threading.active_count()
    workers = pool.Pool(3)
    assert len(workers.each(lambda at: None, PARTS)) == len(PARTS)
    assert threading.active_count() == before
    assert len(workers.each(lambda at: None, PARTS)) == len(PARTS)
    assert threading.active_count() == before + 2


def test_parts_that_join_are_one_for_whoever_works_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "WORTH", WORTH)
    monkeypatch.setattr(pool, "perf_counter", lambda: 0.0)
    end = PARTS[-1].stop
    assert pool.Pool(1).each(lambda at: at, PARTS, joins=True) == [slice(0, end)]
    rest = slice(PARTS[0].stop, end)
    assert pool.Pool(3).each(lambda at: at, PARTS, joins=True) == [PARTS[0], rest]
    monkeypatch.setattr(pool, "WORTH", 0)
    assert pool.Pool(3).each(lambda at: at, PARTS, joins=True) == list(PARTS)


@pytest.mark.parametrize("joins", [False, True])
def test_a_pass_over_nothing(joins: bool) -> None:
    """The moments of no parameters have no parts."""
    assert pool.Pool(3).each(lambda at: at, (), joins=joins) == []


@pytest.mark.parametrize("threads", [1, 4])
def test_an_error_in_a_part_is_raised_and_the_pool_goes_on(threads: int) -> None:
    workers = pool.Pool(threads)

    def work(at: slice) -> None:
        if at == PARTS[7]:
            raise MemoryError("part 7")

    with pytest.raises(MemoryError, match="part 7"):
        workers.each(work, PARTS)
    assert workers.each(lambda at: 1, PARTS) == [1] * len(PARTS)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_starts_threads_of_its_own() -> None:
    pool.shared(2).each(lambda at: None, PARTS)
    child = os.fork()
    if child == 0:
        meeting = threading.Barrier(2, timeout=20)
        try:
            pool.shared(2).each(lambda at: at == PARTS[0] or meeting.wait(), PARTS[:3])
        except BaseException:
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("name", ["numpy", "native"])
def test_the_bits_do_not_depend_on_the_number_of_threads(
    name: str, rng: np.random.Generator
) -> None:
    if name == "native" and native.library_path() is None:
        pytest.skip("no native library: tools/build_kernels.py makes it")
    steps, size = kernels.select(name), 3 * pool.PIECE + 17
    parts = pool.pieces(size)
    start = [rng.standard_normal(size, dtype=np.float32) for _ in range(3)]
    start.append(np.square(rng.standard_normal(size, dtype=np.float32)))
    scalars = kernels.adamw_scalars(0.02, (0.9, 0.999), 1e-6, 0.1, 3)
    results, sums = [], []
    for threads in (1, 2, 3):
        arrays = [array.copy() for array in start]
        workers = pool.Pool(threads)
        for _ in range(3):
            workers.each(lambda at: steps.adamw(*(a[at] for a in arrays), scalars), parts)  # noqa: B023
        sums.append(workers.each(lambda at: steps.squares(arrays[1][at]), PARTS[:4]))  # noqa: B023
        results.append(arrays)
    assert sums[0] == sums[1] == sums[2]
    for other in results[1:]:
        for got, expected in zip(other, results[0], strict=True):
            np.testing.assert_array_equal(got, expected)
