"""What this machine can do at most: a streaming and a multiply-add loop, run beside a benchmark.

Both are measured in slices between the rounds of a benchmark, so that they see the same noise.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

ELEMENTS = 16_000_000  # of each of two arrays: 64 MB, far beyond any cache of a small machine
LANES = (
    96  # independent sums: enough to hide the latency of a multiply-add, few enough for registers
)


def _multiply_add_loop() -> Callable[[np.ndarray, int], None]:
    from numba import njit

    def loop(sums: np.ndarray, rounds: int) -> None:
        """``rounds`` times 96 multiply-adds in registers."""
        a, b = np.float32(0.999), np.float32(0.001)
        for _ in range(rounds):
            for lane in range(LANES):
                sums[lane] = sums[lane] * a + b

    compiled: Any = njit(fastmath={"contract"}, nogil=True)(loop)
    return compiled


def _stream_loop() -> Callable[[np.ndarray, np.ndarray], None]:
    """x = x + y: 8 bytes read and 4 written an element; none is fetched only to be written."""
    from edge_train import kernels

    return kernels.select().accumulate


class Limits:
    """Best rates seen so far, of ``threads`` threads."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._multiply_add, self._stream = _multiply_add_loop(), _stream_loop()
        self._sums = [np.zeros(LANES, np.float32) for _ in range(threads)]
        self._arrays = [
            [np.ones(ELEMENTS // threads, np.float32) for _ in range(2)] for _ in range(threads)
        ]
        self.gigabytes: list[float] = []
        self.gigaflops: list[float] = []
        self._multiply_add(self._sums[0], 1)  # compiles

    def slice(self) -> None:
        """One measurement of each, some 40 ms."""
        rounds = 200_000
        seconds = self._together(lambda n: self._multiply_add(self._sums[n], rounds))
        self.gigaflops.append(2 * LANES * rounds * self._threads / seconds / 1e9)
        seconds = self._together(lambda n: self._stream(*self._arrays[n]))
        self.gigabytes.append(12 * ELEMENTS / seconds / 1e9)

    def _together(self, work: Callable[[int], None]) -> float:
        barrier = threading.Barrier(self._threads + 1)

        def run(number: int) -> None:
            barrier.wait()
            work(number)
            barrier.wait()

        workers = [threading.Thread(target=run, args=(n,)) for n in range(self._threads)]
        for worker in workers:
            worker.start()
        barrier.wait()
        start = time.perf_counter()
        barrier.wait()
        seconds = time.perf_counter() - start
        for worker in workers:
            worker.join()
        return seconds
