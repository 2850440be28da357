"""One side of a benchmark: trains behind a pipe with the API named on the command line.

    PYTHON tools/bench_child.py edge_train.api | onnxruntime.training.api

The same lines drive both, so that what is timed is the same.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from pathlib import Path
from typing import Any

ANSWERS = os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)
sys.path[:0] = [str(Path(__file__).parents[1] / part) for part in ("tests", ".")]

from support.wire import LENGTH, decode, encode  # noqa: E402


class Bench:
    """The training loop of one API over a few batches, in turn."""

    def __init__(self, api: str) -> None:
        self._api = importlib.import_module(api)
        self._steps_taken = 0

    def load(self, folder: str, feeds: list[list[Any]], rate: float, threads: int) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 4
        state = self._api.CheckpointState.load_checkpoint(f"{folder}/checkpoint")
        self._module = self._api.Module(
            f"{folder}/training_model.onnx", state, None, "cpu", options
        )
        self._optimizer = self._api.Optimizer(f"{folder}/optimizer_model.onnx", self._module)
        self._optimizer.set_learning_rate(rate)
        self._module.train()
        self._feeds = feeds

    def steps(self, count: int) -> dict[str, Any]:
        """Milliseconds of each step (forward, backward, optimizer, reset) and each loss."""
        milliseconds, losses = [], []
        for _ in range(count):
            feed = self._feeds[self._steps_taken % len(self._feeds)]
            start = time.perf_counter()
            loss = self._module(*feed)
            self._optimizer.step()
            self._module.lazy_reset_grad()
            milliseconds.append(1000 * (time.perf_counter() - start))
            losses.append(float(loss))
            self._steps_taken += 1
        return {"milliseconds": milliseconds, "losses": losses}

    def peak_rss_kib(self) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


def main() -> None:
    bench = Bench(sys.argv[1])
    while len(head := sys.stdin.buffer.read(LENGTH.size)) == LENGTH.size:
        request = decode(sys.stdin.buffer.read(LENGTH.unpack(head)[0]))
        try:
            reply = {"ok": getattr(bench, request.pop("do"))(**request)}
        except Exception as error:  # the parent raises it again
            reply = {"error": [type(error).__name__, str(error)]}
        ANSWERS.write(encode(reply))
        ANSWERS.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
