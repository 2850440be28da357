"""One kernel of domain edge_train alone in a graph, where there is a library that has it."""

from __future__ import annotations

from collections.abc import Mapping

import onnxruntime
import pytest
from support.lowering import Array

from edge_train import dtypes
from edge_train.graph import ir, onnx_codec
from edge_train.kernels import native


def needs_library() -> None:
    """Leaves a whole file of tests out where there is no library, before its rows are made."""
    if not native.has_ops():
        reason = "no native library: tools/build_kernels.py makes it"
        pytest.skip(reason, allow_module_level=True)


def run_kernel(
    op: str, feeds: Mapping[str, Array], outputs: int = 1, threads: int = 1, **attrs: object
) -> list[Array]:
    """What it makes, float32 all, of arrays in the order of its inputs."""
    names = [f"y{index}" for index in range(outputs)]
    inputs = [ir.Value(k, dtypes.number_of(v.dtype), (None,) * v.ndim) for k, v in feeds.items()]
    made = [ir.Value(name, dtypes.FLOAT, None) for name in names]
    nodes = [ir.make_node(op, list(feeds), names, "kernel", ir.NATIVE, **attrs)]
    graph = ir.Graph("kernel", nodes, inputs, made)
    data = onnx_codec.encode(ir.Model(graph, 10, [("", 21), (ir.NATIVE, 1)]))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    native.register_ops(options)
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    return list(session.run(names, dict(feeds)))
