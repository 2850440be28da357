"""The reference (onnxruntime-training 1.19.2) behind a pipe; runs in the reference venv.

Reads requests {"do": name, ...arguments} from stdin and answers {"ok": value} or {"error":
[class, text]}. File descriptor 1 belongs to the answers alone: what the reference prints from
C++ goes to stderr.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

ANSWERS = os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)
sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np  # noqa: E402  (after descriptor 1 is out of reach of whatever they print)
import onnx  # noqa: E402
import onnxruntime as ort  # noqa: E402
from onnxruntime.training import artifacts, onnxblock  # noqa: E402
from onnxruntime.training.api import (  # noqa: E402
    CheckpointState,
    LinearLRScheduler,
    Module,
    Optimizer,
)
from support.wire import LENGTH, decode, encode  # noqa: E402

ort.set_default_logger_severity(4)


@dataclass
class Training:
    """One set of loaded artifacts."""

    state: Any
    module: Any
    optimizer: Any
    scheduler: Any = None


LOADED: dict[int, Training] = {}
COMMANDS: dict[str, Callable[..., Any]] = {}


def command(function: Callable[..., Any]) -> Callable[..., Any]:
    COMMANDS[function.__name__] = function
    return function


def quiet_options(threads: int) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    return options


# ---- process ----


@command
def info() -> dict[str, str]:
    return {
        "python": sys.version.split()[0],
        "onnxruntime": ort.__version__,
        "onnx": onnx.__version__,
    }


@command
def set_seed(seed: int) -> None:
    ort.set_seed(seed)


@command
def peak_rss_kib() -> int:
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])


# ---- artifacts ----


def loss_block(loss: str | None, options: dict[str, Any]) -> Any:
    if loss is None:
        return None
    return getattr(onnxblock.loss, loss)(**options) if options else artifacts.LossType[loss]


def optimizer_block(optimizer: str | None, options: dict[str, Any], clip: float | None) -> Any:
    if optimizer is None:
        return None
    if not options and clip is None:
        return artifacts.OptimType[optimizer]
    clip_grad = None if clip is None else onnxblock.optim.ClipGradNorm(clip)
    return getattr(onnxblock.optim, optimizer)(clip_grad=clip_grad, **options)


@command
def generate_artifacts(
    model: bytes,
    folder: str,
    loss: str | None,
    loss_options: dict[str, Any],
    optimizer: str | None,
    optimizer_options: dict[str, Any],
    clip_grad_norm: float | None,
    options: dict[str, Any],
) -> None:
    artifacts.generate_artifacts(
        onnx.load_model_from_string(model),
        loss=loss_block(loss, loss_options),
        optimizer=optimizer_block(optimizer, optimizer_options, clip_grad_norm),
        artifact_directory=folder,
        **options,
    )


# ---- checkpoints ----


@command
def read_checkpoint(path: str) -> dict[str, Any]:
    """Values, trainable or not, and properties; of a nominal state the names alone."""
    state = CheckpointState.load_checkpoint(path)
    properties = dict(state.properties)
    names = state._state.parameter_names()
    try:
        entries = dict(state.parameters)
    except RuntimeError as error:
        if "nominal" not in str(error):
            raise
        nominal = dict.fromkeys(names)
        return {"parameters": nominal, "requires_grad": {}, "properties": properties}
    return {
        "parameters": {name: np.array(entry.data) for name, entry in entries.items()},
        "requires_grad": {name: entry.requires_grad for name, entry in entries.items()},
        "properties": properties,
    }


@command
def resave_checkpoint(source: str, target: str, include_optimizer_state: bool) -> None:
    state = CheckpointState.load_checkpoint(source)
    CheckpointState.save_checkpoint(state, target, include_optimizer_state)


@command
def checkpoint_to_model(path: str, model: bytes) -> bytes:
    proto = onnx.load_model_from_string(model)
    onnxblock.load_checkpoint_to_model(path, proto)
    return proto.SerializeToString()


# ---- training ----


@command
def load(
    checkpoint: str,
    training_model: str,
    eval_model: str | None,
    optimizer_model: str | None,
    threads: int,
) -> int:
    state = CheckpointState.load_checkpoint(checkpoint)
    module = Module(training_model, state, eval_model, "cpu", quiet_options(threads))
    optimizer = None if optimizer_model is None else Optimizer(optimizer_model, module)
    handle = max(LOADED, default=0) + 1
    LOADED[handle] = Training(state, module, optimizer)
    return handle


@command
def drop(handle: int) -> None:
    LOADED.pop(handle, None)


def take_step(handle: int, feed: Any, training: bool) -> list[Any]:
    module = LOADED[handle].module.train(training)
    if isinstance(feed, dict):
        feed = [feed[name] for name in module.input_names() if name in feed]
    outputs = module(*feed)
    return list(outputs) if isinstance(outputs, tuple) else [outputs]


@command
def train_step(handle: int, feed: Any) -> list[Any]:
    return take_step(handle, feed, training=True)


@command
def eval_step(handle: int, feed: Any) -> list[Any]:
    return take_step(handle, feed, training=False)


@command
def optimizer_step(handle: int) -> None:
    LOADED[handle].optimizer.step()


@command
def lazy_reset_grad(handle: int) -> None:
    LOADED[handle].module.lazy_reset_grad()


@command
def time_steps(handle: int, feed: Any, steps: int) -> dict[str, Any]:
    """Seconds of each of ``steps`` full training steps, and the last loss."""
    training = LOADED[handle]
    seconds = []
    loss: Any = None
    for _ in range(steps):
        start = time.perf_counter()
        loss = take_step(handle, feed, training=True)[0]
        training.optimizer.step()
        training.module.lazy_reset_grad()
        seconds.append(time.perf_counter() - start)
    return {"seconds": seconds, "loss": float(loss)}


# ---- state ----


@command
def parameters(handle: int) -> dict[str, Any]:
    return {name: np.array(entry.data) for name, entry in LOADED[handle].state.parameters}


@command
def gradients(handle: int) -> dict[str, Any]:
    entries = [entry for _, entry in LOADED[handle].state.parameters if entry.requires_grad]
    return {entry.name: np.array(entry.grad) for entry in entries}


@command
def requires_grad(handle: int) -> dict[str, bool]:
    return {name: entry.requires_grad for name, entry in LOADED[handle].state.parameters}


@command
def set_parameters(handle: int, values: dict[str, Any]) -> None:
    for name, value in values.items():
        LOADED[handle].state.parameters[name] = value


@command
def properties(handle: int) -> dict[str, Any]:
    return dict(LOADED[handle].state.properties)


@command
def set_property(handle: int, name: str, value: Any) -> None:
    LOADED[handle].state.properties[name] = value


@command
def save_checkpoint(handle: int, path: str, include_optimizer_state: bool) -> None:
    CheckpointState.save_checkpoint(LOADED[handle].state, path, include_optimizer_state)


@command
def get_contiguous(handle: int, trainable_only: bool) -> Any:
    return LOADED[handle].module.get_contiguous_parameters(trainable_only).numpy()


@command
def get_parameters_size(handle: int, trainable_only: bool) -> int:
    return LOADED[handle].module.get_parameters_size(trainable_only)


@command
def copy_buffer(handle: int, buffer: Any, trainable_only: bool) -> None:
    value = ort.OrtValue.ortvalue_from_numpy(buffer)
    LOADED[handle].module.copy_buffer_to_parameters(value._ortvalue, trainable_only)


@command
def names(handle: int, training: bool) -> dict[str, list[str]]:
    module = LOADED[handle].module.train(training)
    return {"inputs": module.input_names(), "outputs": module.output_names()}


@command
def export(handle: int, path: str, outputs: list[str]) -> None:
    LOADED[handle].module.export_model_for_inferencing(path, outputs)


# ---- learning rate ----


@command
def set_learning_rate(handle: int, rate: float) -> None:
    LOADED[handle].optimizer.set_learning_rate(rate)


@command
def get_learning_rate(handle: int) -> float:
    return LOADED[handle].optimizer.get_learning_rate()


@command
def schedule(handle: int, warmup: int, total: int, initial_rate: float) -> None:
    training = LOADED[handle]
    training.scheduler = LinearLRScheduler(training.optimizer, warmup, total, initial_rate)


@command
def schedule_step(handle: int) -> None:
    LOADED[handle].scheduler.step()


# ---- one model, to compare an op ----


@command
def run_model(model: bytes, feed: dict[str, Any], outputs: list[str] | None) -> list[Any]:
    """Runs a model of any ops, com.microsoft training ops among them, without optimizations."""
    options = quiet_options(threads=1)
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return list(ort.InferenceSession(model, options).run(outputs, feed))


def answer(request: dict[str, Any]) -> bytes:
    name = request.pop("do")
    try:
        return encode({"ok": COMMANDS[name](**request)})
    except Exception as error:  # the client raises it again
        return encode({"error": [type(error).__name__, str(error)]})


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    while len(head := requests.read(LENGTH.size)) == LENGTH.size:
        body = requests.read(LENGTH.unpack(head)[0])
        answers.write(answer(decode(body)))
        answers.flush()


if __name__ == "__main__":
    serve(sys.stdin.buffer, ANSWERS)
    # The reference may crash while it frees its sessions in whatever order.
    os._exit(0)
