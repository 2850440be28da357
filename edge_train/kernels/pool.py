"""Threads for passes over large buffers: a few that live as long as the process, woken per pass.

Kernels release the interpreter's lock, so Python threads run them side by side. A pass is cut into
the same pieces whatever the number of threads, and sums are added up in the order of the pieces:
the bits do not depend on it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from functools import lru_cache
from queue import SimpleQueue
from time import perf_counter
from typing import Any, TypeVar

T = TypeVar("T")

PIECE = 1 << 17  # elements: 512 KB of each array, and some 100 us of work
WORTH = 1e-3  # seconds: less work is done by the caller before another thread has woken up


@lru_cache(maxsize=64)
def pieces(size: int) -> tuple[slice, ...]:
    """A buffer of ``size`` elements in pieces of PIECE; at least one."""
    starts = range(0, size, PIECE) if size else (0,)
    return tuple(slice(start, min(start + PIECE, size)) for start in starts)


class _Pass:
    """One pass: whoever is free takes the next piece."""

    def __init__(self, work: Callable[[slice], Any], parts: Sequence[slice]) -> None:
        self._work = work
        self._parts = parts
        self._lock = threading.Lock()
        self._next = 0
        self._left = len(parts)
        self._done = threading.Event()
        self._error: BaseException | None = None
        self.results: list[Any] = [None] * len(parts)

    def help(self) -> None:
        """Takes pieces until none is left."""
        while True:
            with self._lock:
                index = self._next
                self._next += 1
            if index >= len(self._parts):
                return
            try:
                self.results[index] = self._work(self._parts[index])
            except BaseException as error:
                self._error = error
            with self._lock:
                self._left -= 1
                if not self._left:
                    self._done.set()

    def wait(self) -> None:
        """Until every piece is done; raises what a piece raised."""
        self._done.wait()
        if self._error is not None:
            raise self._error


def _serve(passes: SimpleQueue[_Pass]) -> None:
    while True:
        passes.get().help()


def _alone(work: Callable[[slice], T], parts: Sequence[slice], joins: bool) -> list[T]:
    if joins and parts:
        return [work(slice(parts[0].start, parts[-1].stop))]
    return [work(part) for part in parts]


class Pool:
    """``threads`` threads, the caller's among them; the others start with the first long pass."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._passes: SimpleQueue[_Pass] | None = None

    def each(
        self, work: Callable[[slice], T], parts: Sequence[slice], joins: bool = False
    ) -> list[T]:
        """``work`` of every part, the results in the order of the parts.

        The first part is the caller's, and tells whether the rest takes long enough to wake others.
        ``joins``: the caller may do several parts in a row as one, for a pass whose result does not
        depend on the cuts.
        """
        if self._threads == 1 or len(parts) < 3:
            return _alone(work, parts, joins)
        start = perf_counter()
        first, rest = work(parts[0]), parts[1:]
        if (perf_counter() - start) * len(rest) < WORTH:
            return [first, *_alone(work, rest, joins)]
        shared_work = _Pass(work, rest)
        queue = self._queue()
        for _ in range(min(self._threads, len(rest)) - 1):
            queue.put(shared_work)
        shared_work.help()
        shared_work.wait()
        return [first, *shared_work.results]

    def _queue(self) -> SimpleQueue[_Pass]:
        if self._passes is None:
            self._passes = SimpleQueue()
            for _ in range(self._threads - 1):
                threading.Thread(
                    target=_serve, args=(self._passes,), name="edge_train", daemon=True
                ).start()
        return self._passes


@lru_cache(maxsize=8)
def shared(threads: int) -> Pool:
    """The process's pool of that many threads."""
    return Pool(threads)


# A forked child has the queue and none of the threads: it starts its own.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=shared.cache_clear)
