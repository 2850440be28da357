"""A native library that lacks a kernel of the graph is named, with what to do."""

from __future__ import annotations

import pytest

from edge_train import dtypes
from edge_train.errors import NativeError
from edge_train.graph import ir
from edge_train.kernels import native
from edge_train.session import make_session


@pytest.mark.skipif(
    not native.has_ops(), reason="no native library: tools/build_kernels.py makes it"
)
def test_a_kernel_that_the_library_lacks() -> None:
    value = ir.Value("x", dtypes.FLOAT, (2,))
    node = ir.make_node("OfTomorrow", ["x"], ["y"], "n", ir.NATIVE)
    graph = ir.Graph("g", [node], [value], [ir.Value("y", dtypes.FLOAT, None)])
    with pytest.raises(NativeError, match=r"is older than this edge_train.*OfTomorrow"):
        make_session(ir.Model(graph, 10, [("", 21), (ir.NATIVE, 1)]), "graph")
