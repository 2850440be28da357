"""The name under which custom blocks import these functions from the reference package."""

from __future__ import annotations

from edge_train.onnxblock.graphs import (
    generate_graph_name,
    get_input_from_input_name,
    get_output_from_output_name,
    node_arg_exists,
    register_graph_outputs,
)

__all__ = [
    "generate_graph_name",
    "get_input_from_input_name",
    "get_output_from_output_name",
    "node_arg_exists",
    "register_graph_outputs",
]
