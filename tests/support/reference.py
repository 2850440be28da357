"""Client of the reference process (tests/parity/reference_server.py)."""

from __future__ import annotations

import os
import select
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from support.wire import LENGTH, decode, encode
from support.zoo import Artifacts

Array = NDArray[Any]
Arrays = dict[str, Array]
Feed = Mapping[str, Array] | Sequence[Array]

ROOT = Path(__file__).parents[2]
SERVER = ROOT / "tests" / "parity" / "reference_server.py"


class ReferenceError(Exception):
    """The reference raised: ``kind`` is the name of its class."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind
        self.text = text


class ReferenceDied(Exception):
    """The reference process ended or hung; what it was asked stands in the text."""


def reference_python() -> Path | None:
    """Interpreter of the reference venv; None where there is none."""
    told = os.environ.get("EDGE_TRAIN_REFERENCE_PYTHON")
    python = Path(told) if told else ROOT / ".venv-reference" / "bin" / "python"
    return python if python.exists() else None


@dataclass(frozen=True)
class Contents:
    """A checkpoint as the reference reads it; a nominal one has None values, no requires_grad."""

    parameters: dict[str, Array | None]
    requires_grad: dict[str, bool]
    properties: dict[str, int | float | str]


class Reference:
    """One process of the reference; started at the first call, and again by ensure_running."""

    def __init__(
        self,
        python: Path,
        timeout: float = 120.0,
        server: Sequence[str] = (str(SERVER),),
        extra_env: Mapping[str, str] | None = None,
    ) -> None:
        self._command = [str(python), "-u", *server]
        self._env = {**os.environ, "OMP_NUM_THREADS": "1", **(extra_env or {})}
        self._timeout = timeout
        self._process: subprocess.Popen[bytes] | None = None
        self._stderr: IO[bytes] | None = None

    # ---- process ----

    def ensure_running(self) -> None:
        """Starts the process where none is alive; handles of a dead one stay dead."""
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  (close() ends it)
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=self._env,
        )

    def close(self) -> None:
        """Ends the process; harmless when there is none."""
        process, self._process = self._process, None
        if self._stderr is not None:
            self._stderr.close()
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue  # it died with a request unread
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _died(self, what: str, why: str) -> ReferenceDied:
        if self._process is not None:
            self._process.kill()
            why += f" (exit {self._process.wait()})"
        tail = ""
        if self._stderr is not None:
            self._stderr.seek(0)
            tail = self._stderr.read().decode(errors="replace")[-2000:]
        return ReferenceDied(f"the reference {why} at {what!r}; the end of its stderr:\n{tail}")

    def _read(self, size: int, what: str, deadline: float) -> bytes:
        assert self._process is not None
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        parts: list[bytes] = []
        while size > 0:
            left = max(0.0, deadline - time.monotonic())
            if not select.select([descriptor], [], [], left)[0]:
                raise self._died(what, f"did not answer within {self._timeout:g} s")
            part = os.read(descriptor, min(size, 1 << 20))
            if not part:
                raise self._died(what, "died")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def call(self, do: str, **arguments: Any) -> Any:
        """One request and its answer; raises ReferenceError or ReferenceDied."""
        if self._process is None:
            self.ensure_running()
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(encode({"do": do, **arguments}))
            self._process.stdin.flush()
        except (BrokenPipeError, ValueError) as error:
            raise self._died(do, "was dead already") from error
        deadline = time.monotonic() + self._timeout
        size = LENGTH.unpack(self._read(LENGTH.size, do, deadline))[0]
        reply = decode(self._read(size, do, deadline))
        if "error" in reply:
            raise ReferenceError(*reply["error"])
        return reply["ok"]

    # ---- commands without a handle ----

    def info(self) -> dict[str, str]:
        """Versions: python, onnxruntime, onnx."""
        return dict(self.call("info"))

    def set_seed(self, seed: int) -> None:
        self.call("set_seed", seed=seed)

    def peak_rss_mib(self) -> float:
        return float(self.call("peak_rss_kib")) / 1024

    def run_model(
        self, model: bytes, feed: Mapping[str, Any], outputs: Sequence[str] | None = None
    ) -> list[Any]:
        """Runs an ONNX model with the kernels of the training wheel, graph optimizations off."""
        chosen = None if outputs is None else list(outputs)
        return list(self.call("run_model", model=model, feed=dict(feed), outputs=chosen))

    def generate_artifacts(
        self,
        model: bytes | Path,
        folder: Path,
        *,
        loss: str | None = "CrossEntropyLoss",
        loss_options: Mapping[str, Any] | None = None,
        optimizer: str | None = "AdamW",
        optimizer_options: Mapping[str, Any] | None = None,
        clip_grad_norm: float | None = None,
        nominal: bool = True,
        **options: Any,
    ) -> Artifacts:
        """generate_artifacts of the reference into ``folder``.

        ``options``: requires_grad, frozen_params, additional_output_names, prefix,
        loss_input_names. ``optimizer_options``: bias_correction, betas, eps, weight_decay.
        """
        self.call(
            "generate_artifacts",
            model=model if isinstance(model, bytes) else model.read_bytes(),
            folder=str(folder),
            loss=loss,
            loss_options=dict(loss_options or {}),
            optimizer=optimizer,
            optimizer_options=dict(optimizer_options or {}),
            clip_grad_norm=clip_grad_norm,
            options={"nominal_checkpoint": nominal, **options},
        )
        return Artifacts(folder.name, folder)

    def read_checkpoint(self, path: Path) -> Contents:
        return Contents(**self.call("read_checkpoint", path=str(path)))

    def resave_checkpoint(
        self, source: Path, target: Path, include_optimizer_state: bool = False
    ) -> None:
        """Load and save, without a Module in between."""
        arguments = {"source": str(source), "target": str(target)}
        self.call("resave_checkpoint", **arguments, include_optimizer_state=include_optimizer_state)

    def checkpoint_to_model(self, path: Path, model: bytes) -> bytes:
        """The model with the initializers of the checkpoint (load_checkpoint_to_model)."""
        return bytes(self.call("checkpoint_to_model", path=str(path), model=model))

    def load(
        self,
        artifacts: Artifacts,
        *,
        checkpoint: Path | None = None,
        with_eval: bool = True,
        with_optimizer: bool = True,
        threads: int = 1,
    ) -> ReferenceTraining:
        """CheckpointState, Module and Optimizer of a folder of artifacts."""
        handle = self.call(
            "load",
            checkpoint=str(checkpoint or artifacts.checkpoint),
            training_model=str(artifacts.training_model),
            eval_model=str(artifacts.eval_model) if with_eval else None,
            optimizer_model=str(artifacts.optimizer_model) if with_optimizer else None,
            threads=threads,
        )
        return ReferenceTraining(self, int(handle))


@dataclass(frozen=True)
class ReferenceTraining:
    """Loaded artifacts inside the reference process."""

    reference: Reference
    handle: int

    def call(self, do: str, **arguments: Any) -> Any:
        return self.reference.call(do, handle=self.handle, **arguments)

    def drop(self) -> None:
        self.call("drop")

    # ---- steps; a feed is arrays by input name or in order ----

    def train_step(self, feed: Feed) -> list[Array]:
        """Outputs of one training step; gradients are in .gradients()."""
        return list(self.call("train_step", feed=feed))

    def eval_step(self, feed: Feed) -> list[Array]:
        return list(self.call("eval_step", feed=feed))

    def optimizer_step(self) -> None:
        self.call("optimizer_step")

    def lazy_reset_grad(self) -> None:
        self.call("lazy_reset_grad")

    def step(self, feed: Feed) -> float:
        """Train step, optimizer step, lazy reset; returns the loss."""
        loss = self.train_step(feed)[0]
        self.optimizer_step()
        self.lazy_reset_grad()
        return float(loss)

    def time_steps(self, feed: Feed, steps: int) -> tuple[list[float], float]:
        """Seconds of each full step and the last loss."""
        timed = self.call("time_steps", feed=feed, steps=steps)
        return list(timed["seconds"]), float(timed["loss"])

    # ---- state ----

    def parameters(self) -> Arrays:
        return dict(self.call("parameters"))

    def gradients(self) -> Arrays:
        return dict(self.call("gradients"))

    def requires_grad(self) -> dict[str, bool]:
        return dict(self.call("requires_grad"))

    def set_parameters(self, values: Mapping[str, Array]) -> None:
        self.call("set_parameters", values=dict(values))

    def properties(self) -> dict[str, int | float | str]:
        return dict(self.call("properties"))

    def set_property(self, name: str, value: Any) -> None:
        self.call("set_property", name=name, value=value)

    def save_checkpoint(self, path: Path, include_optimizer_state: bool = False) -> None:
        self.call(
            "save_checkpoint", path=str(path), include_optimizer_state=include_optimizer_state
        )

    def get_contiguous(self, trainable_only: bool = False) -> Array:
        buffer: Array = np.asarray(self.call("get_contiguous", trainable_only=trainable_only))
        return buffer

    def get_parameters_size(self, trainable_only: bool = True) -> int:
        return int(self.call("get_parameters_size", trainable_only=trainable_only))

    def copy_buffer(self, buffer: Array, trainable_only: bool = True) -> None:
        self.call("copy_buffer", buffer=buffer, trainable_only=trainable_only)

    def input_names(self, training: bool = True) -> list[str]:
        return list(self.call("names", training=training)["inputs"])

    def output_names(self, training: bool = True) -> list[str]:
        return list(self.call("names", training=training)["outputs"])

    def export(self, path: Path, outputs: Sequence[str]) -> None:
        self.call("export", path=str(path), outputs=list(outputs))

    # ---- learning rate ----

    def set_learning_rate(self, rate: float) -> None:
        self.call("set_learning_rate", rate=rate)

    def get_learning_rate(self) -> float:
        return float(self.call("get_learning_rate"))

    def schedule(self, warmup: int, total: int, initial_rate: float) -> None:
        """Makes a LinearLRScheduler."""
        self.call("schedule", warmup=warmup, total=total, initial_rate=initial_rate)

    def schedule_step(self) -> None:
        self.call("schedule_step")
