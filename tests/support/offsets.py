"""The smallest model with a parameter of any shape: y = z + p, the gradient of y being p's."""

from __future__ import annotations

from typing import Any

import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper


def offset_model(p: NDArray[Any], opset: int = 17, symbols: bool = False) -> onnx.ModelProto:
    """z and y have the shape of p, or with ``symbols`` a symbol for every axis but 1."""
    kind = helper.np_dtype_to_tensor_dtype(p.dtype)
    dims = [f"d{axis}" if symbols and axis != 1 else size for axis, size in enumerate(p.shape)]
    graph = helper.make_graph(
        [helper.make_node("Add", ["z", "p"], ["y"], "add")],
        "offset",
        [helper.make_tensor_value_info("z", kind, dims)],
        [helper.make_tensor_value_info("y", kind, dims)],
        [numpy_helper.from_array(p, "p")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
