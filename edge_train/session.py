"""Sessions of stock onnxruntime over lowered graphs: the only module that makes any.

What onnxruntime's optimizers make of a graph is put into an order of our own. runner.py runs the
sessions.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from edge_train import dtypes
from edge_train.errors import ArtifactError, NativeError, UnsupportedOp
from edge_train.graph import ir, onnx_codec
from edge_train.graph.constants import without_uniform_constants
from edge_train.graph.order import memory_order
from edge_train.kernels import draws, native
from edge_train.runtime import onnxruntime
from edge_train.scratch import scratch_file

#: changes a graph that onnxruntime has optimized
Rewrite: TypeAlias = Callable[[ir.Model], ir.Model]

#: onnxruntime's own lines on stderr: only what ends the process; errors arrive as exceptions
_LOG_FATAL = 4
_LOG_ERROR = 3
#: -1: onnxruntime's default, which is to warn
_LOG_WARNING = (-1, 2)
#: SessionOptions cannot be copied: those of a user, which several threads may share, are changed
#: for the time of a session's creation
_BORROWED = threading.RLock()
_PROVIDERS = ["CPUExecutionProvider"]
#: in the name of a fused node: the optimizer that made it
_FUSION = re.compile(r"/(\w+Fusion)/")


def thread_count() -> int:
    """Threads for onnxruntime and the kernels: the CPUs this process may run on, at most 4.

    ``OMP_NUM_THREADS`` lowers or raises it.
    """
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdigit() and int(asked) > 0:
        return int(asked)
    try:
        allowed = len(os.sched_getaffinity(0))
    except (AttributeError, OSError):  # not Linux, or refused (proot)
        allowed = os.cpu_count() or 1
    return min(allowed, 4)


def default_options() -> onnxruntime.SessionOptions:
    """Session options for a small device: few threads, no spinning, nothing on stderr, and no
    memory patterns (docs/memory.md)."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = thread_count()
    options.inter_op_num_threads = 1
    options.log_severity_level = _LOG_FATAL
    # a pattern is one more block of the size of all activations, beside what the arena has
    options.enable_mem_pattern = False
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


def set_seed(seed: int) -> None:
    """Seeds the random numbers of every session; ValueError unless an int >= 0."""
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise ValueError(f"seed: expected an int in 0..2**63-1, got {seed!r}")
    onnxruntime.set_seed(seed)
    draws.set_seed(seed)


def run_model(path: str | os.PathLike[str], inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Runs an ordinary ONNX file once, as any application does: inputs in the graph's order."""
    session = onnxruntime.InferenceSession(
        os.fspath(path), sess_options=default_options(), providers=_PROVIDERS
    )
    names = [value.name for value in session.get_inputs()]
    outputs: list[np.ndarray] = session.run(None, dict(zip(names, inputs, strict=True)))
    return outputs


def make_session(
    model: ir.Model,
    what: str,
    options: onnxruntime.SessionOptions | None = None,
    rewrite: Rewrite | None = None,
) -> onnxruntime.InferenceSession:
    """A CPU session over a lowered graph; ``what`` names the graph in messages.

    ``rewrite`` changes the graph after onnxruntime's optimizers: what it makes runs as it is.

    Errors: UnsupportedOp lists every node whose op onnxruntime lacks; NativeError for a library
    without a kernel that the graph has; ArtifactError otherwise.
    """
    with nullcontext() if options is None else _BORROWED:
        return _made(model, what, _knowing(model, options or default_options()), rewrite)


def _made(
    model: ir.Model, what: str, options: onnxruntime.SessionOptions, rewrite: Rewrite | None
) -> onnxruntime.InferenceSession:
    data = onnx_codec.encode(model)
    try:
        running = running_graph(model, data, options, rewrite)
        return _session(data, options) if running is None else _ordered_session(running, options)
    except Exception as error:
        unknown = unknown_ops(model.graph.nodes, model, options)
        if any(f"domain '{ir.NATIVE}'" in line for line in unknown):
            raise NativeError(
                f"the native library {native.library_path()} is older than this edge_train: it "
                f"lacks {unknown[0]}; build it again with tools/build_kernels.py, or pass "
                "kernels='portable' to Module"
            ) from error
        if unknown:
            raise UnsupportedOp(unsupported_text(what, unknown)) from error
        raise ArtifactError(f"onnxruntime cannot load the {what}: {brief(error)}") from error


def _knowing(model: ir.Model, options: onnxruntime.SessionOptions) -> onnxruntime.SessionOptions:
    if any(domain == ir.NATIVE for domain, _ in model.opset_imports):
        native.register_ops(options)
        draws.start()
    return options


def executed_graph(model: ir.Model, rewrite: Rewrite | None = None) -> ir.Model:
    """A lowered graph as a session with the default options runs it: fused, in its order."""
    options, data = _knowing(model, default_options()), onnx_codec.encode(model)
    running = running_graph(model, data, options, rewrite)
    return onnx_codec.load(_optimized(data, options)) if running is None else running


#: with fewer outputs there is no order to choose: evaluation
_FEW_OUTPUTS = 3
#: larger constants are not copied for the sake of the order
_MOST_CONSTANTS = 1 << 24


def running_graph(
    model: ir.Model,
    data: bytes,
    options: onnxruntime.SessionOptions,
    rewrite: Rewrite | None = None,
) -> ir.Model | None:
    """The graph that runs: what onnxruntime's optimizers and ``rewrite`` make of ``model``, in
    memory_order.

    ``data`` are the model's bytes. None where onnxruntime's own order is kept: without ``rewrite``
    for graphs with few outputs or large constants, and if ``options`` asks for an order or for the
    optimized file.
    """
    constants = sum(len(tensor.raw or b"") for tensor in model.graph.initializers.values())
    asked = options.optimized_model_filepath or (
        options.execution_order != onnxruntime.ExecutionOrder.DEFAULT
    )
    small = len(model.graph.outputs) < _FEW_OUTPUTS or constants > _MOST_CONSTANTS
    # onnxruntime takes the sizes of an Einsum that broadcasts for equal: memory is shared wrongly
    fixed = any(node.op_type == "Einsum" for node in model.graph.nodes)
    if rewrite is None and (asked or small or fixed):
        return None
    try:
        optimized = onnx_codec.load(_optimized(data, options))
    except Exception:
        if rewrite is None:  # no place for a file, or a graph that cannot run in any order
            return None
        raise
    if rewrite is not None:
        optimized = rewrite(optimized)
    graph = without_uniform_constants(optimized.graph)
    graph = replace(graph, nodes=memory_order(graph.nodes))
    return replace(optimized, graph=graph)


def _optimized(data: bytes, options: onnxruntime.SessionOptions) -> bytes:
    level = options.log_severity_level
    # onnxruntime warns that the file fits this machine only: it is read here, and gone
    quiet = _LOG_ERROR if level in _LOG_WARNING else level
    with scratch_file() as path:
        with _changed(options, optimized_model_filepath=path, log_severity_level=quiet):
            _session(data, options)
        with open(path, "rb") as file:
            return file.read()


def _ordered_session(
    running: ir.Model, options: onnxruntime.SessionOptions
) -> onnxruntime.InferenceSession:
    """A session that runs the nodes as they are and in their order."""
    with _changed(
        options,
        graph_optimization_level=onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
        execution_order=onnxruntime.ExecutionOrder.PRIORITY_BASED,
    ):
        return _session(onnx_codec.encode(running), options)


@contextmanager
def _changed(options: onnxruntime.SessionOptions, **values: Any) -> Iterator[None]:
    """Options with other values for a while."""
    before = {name: getattr(options, name) for name in values}
    try:
        for name, value in values.items():
            setattr(options, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(options, name, value)


def _session(
    data: bytes, options: onnxruntime.SessionOptions, disabled: frozenset[str] = frozenset()
) -> onnxruntime.InferenceSession:
    try:
        return onnxruntime.InferenceSession(
            data, sess_options=options, providers=_PROVIDERS, disabled_optimizers=list(disabled)
        )
    except Exception as error:
        # onnxruntime 1.20 and 1.21 fuse nodes in double to ops that they have for float32 only
        guilty = frozenset(_FUSION.findall(str(error))) - disabled
        if not guilty:
            raise
        return _session(data, options, disabled | guilty)


def unsupported_text(what: str, lines: Sequence[str]) -> str:
    """The one message that lists every node nothing here can run."""
    listed = "\n  ".join(lines)
    return (
        f"{what}: {len(lines)} node(s) cannot be run by edge_train or onnxruntime "
        f"{onnxruntime.__version__}:\n  {listed}"
    )


def unknown_ops(
    nodes: Iterable[ir.Node], model: ir.Model, options: onnxruntime.SessionOptions | None = None
) -> list[str]:
    """Descriptions of the nodes whose op this onnxruntime does not know at the model's opsets."""
    options = options or default_options()
    known: dict[tuple[str, str], bool] = {}
    lines = []
    for node in nodes:
        key = (node.domain, node.op_type)
        if key not in known:
            known[key] = _is_known(node, model, options)
        if not known[key]:
            version = model.opset(node.domain)
            lines.append(f"{node.describe()}: unknown op (imported version {version})")
    return lines


def _is_known(node: ir.Node, model: ir.Model, options: onnxruntime.SessionOptions) -> bool:
    """Asks onnxruntime by loading the bare op: an unknown one has a message of its own."""
    probe = ir.make_node(node.op_type, ["x"], ["y"], "probe", node.domain)
    value = ir.Value("x", dtypes.FLOAT, (1,))
    graph = ir.Graph("probe", [probe], [value], [ir.Value("y", None, None)])
    imports = [("", model.opset() or 0)]
    if node.domain not in ir.ONNX_DOMAINS:
        imports.append((node.domain, model.opset(node.domain) or 1))
    data = onnx_codec.encode(ir.Model(graph, model.ir_version, imports, model.extra))
    try:
        onnxruntime.InferenceSession(data, sess_options=options, providers=_PROVIDERS)
    except Exception as error:
        text = str(error)
        return "is not a registered function/op" not in text and "No Op registered" not in text
    return True


def brief(error: Exception) -> str:
    """The first line of an error's message: onnxruntime's go on with where in its source."""
    return str(error).strip().splitlines()[0]
