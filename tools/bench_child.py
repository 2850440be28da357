"""One side of tools/bench.py, in its own process: an API, one model, steps on request.

    python tools/bench_child.py edge_train.api | onnxruntime.training.api | torch | torch.compile

The same lines drive all of them, so that what is timed is the same.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

ANSWERS = os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)
sys.path[:0] = [str(Path(__file__).parents[1] / part) for part in ("tests", "tools", ".")]

import numpy as np  # noqa: E402  (after descriptor 1 is out of reach of whatever they print)
from support.wire import LENGTH, decode, encode  # noqa: E402

EPS = 1e-6  # of the artifacts


class ArtifactSide:
    """edge_train, or the reference: both have the same API."""

    def __init__(self, api: str, threads: int, **_: Any) -> None:
        import importlib

        import onnxruntime

        os.environ["OMP_NUM_THREADS"] = str(threads)  # what our own default options go by
        self._api = importlib.import_module(api)
        self._options = None
        if not api.startswith("edge_train"):
            self._options = onnxruntime.SessionOptions()
            self._options.intra_op_num_threads = threads
            self._options.log_severity_level = 4

    def build(
        self, folder: str, rate: float, module: dict[str, Any], optimizer: dict[str, Any], **_: Any
    ) -> None:
        """Loads the artifacts in ``folder``; keyword arguments of Module and Optimizer."""
        state = self._api.CheckpointState.load_checkpoint(f"{folder}/checkpoint")
        graph = f"{folder}/training_model.onnx"
        self._module = self._api.Module(graph, state, None, "cpu", self._options, **module)
        self._optimizer = self._api.Optimizer(
            f"{folder}/optimizer_model.onnx", self._module, **optimizer
        )
        self._optimizer.set_learning_rate(rate)
        self._module.train()

    def backward(self, feed: list[Any]) -> Any:
        return self._module(*feed)

    def update(self) -> None:
        self._optimizer.step()
        self._module.lazy_reset_grad()


class TorchSide:
    """PyTorch: the same network as an idiomatic module, fused AdamW."""

    def __init__(self, api: str, threads: int, **_: Any) -> None:
        import torch

        torch.set_num_threads(threads)
        self._torch, self._compiles = torch, api == "torch.compile"

    def build(
        self, work: str, weights: dict[str, Any], trainable: list[str], rate: float, **_: Any
    ) -> None:
        """The network called ``work`` with these weights, of which ``trainable`` are trained."""
        import bench_torch

        model = bench_torch.build(work, weights, trainable)
        trained = [p for p in model.parameters() if p.requires_grad]
        options = {"lr": rate, "betas": (0.9, 0.999), "eps": EPS, "weight_decay": 0.0}
        self._optimizer = self._torch.optim.AdamW(trained, fused=True, **options)
        self._loss = bench_torch.loss_of(model)
        if self._compiles:
            self._loss = self._torch.compile(self._loss)

    def backward(self, feed: list[Any]) -> Any:
        x, labels = (self._torch.from_numpy(array) for array in feed)
        loss = self._loss(x, labels)
        loss.backward()
        return loss.detach()

    def update(self) -> None:
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)


class Bench:
    """The training loop of one side over a few batches, in turn."""

    def __init__(self, api: str) -> None:
        self._api = api
        self._taken = 0
        self._idle = self._imported = 0

    def load(self, feeds: list[list[Any]], threads: int, **options: Any) -> None:
        """Imports the API and makes the network."""
        self._feeds = feeds
        self._idle = _status()["RssAnon"]
        kind = TorchSide if self._api.startswith("torch") else ArtifactSide
        self._side = kind(self._api, threads)
        self._imported = _status()["RssAnon"]
        self._side.build(**options)

    def steps(self, count: int) -> dict[str, Any]:
        """Milliseconds of each step, those of its optimizer (with the reset), and each loss."""
        whole, optimizer, losses = [], [], []
        for _ in range(count):
            feed = self._feeds[self._taken % len(self._feeds)]
            start = time.perf_counter()
            loss = self._side.backward(feed)
            middle = time.perf_counter()
            self._side.update()
            end = time.perf_counter()
            whole.append(1000 * (end - start))
            optimizer.append(1000 * (end - middle))
            losses.append(float(np.asarray(loss)))
            self._taken += 1
        return {"milliseconds": whole, "optimizer": optimizer, "losses": losses}

    def memory(self) -> dict[str, int]:
        """KiB: the peak; and the private part of it above the process before and after imports.

        Files that are mapped (libraries) are shared by processes and are not counted in that.
        """
        now = _status()
        private = now["VmHWM"] - now["RssFile"] - now["RssShmem"]
        return {
            "peak": now["VmHWM"],
            "above_idle": private - self._idle,
            "above_imports": private - self._imported,
        }


def _status() -> dict[str, int]:
    lines = Path("/proc/self/status").read_text().splitlines()
    pairs = (line.split(":") for line in lines if line.startswith(("Vm", "Rss")))
    return {key: int(value.split()[0]) for key, value in pairs}


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
