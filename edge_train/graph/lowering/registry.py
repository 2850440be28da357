"""The one table of lowering rules: (domain, op) -> the function that rewrites such a node.

A rule takes a Builder and the node and returns the tensor that stands for each output ("" for one
nobody reads). It raises Refuse when this form of the op cannot be lowered.
"""

from __future__ import annotations

from collections.abc import Callable

from edge_train.graph import ir
from edge_train.graph.lowering.builder import Builder

Rule = Callable[[Builder, ir.Node], "str | tuple[str, ...]"]

RULES: dict[tuple[str, str], Rule] = {}


def lowers(*op_types: str, domain: str = ir.MICROSOFT) -> Callable[[Rule], Rule]:
    """Registers the decorated function for the named ops; a second rule for an op is a bug."""

    def register(rule: Rule) -> Rule:
        for op_type in op_types:
            if (domain, op_type) in RULES:
                raise ValueError(f"two lowering rules for {domain or 'ai.onnx'}::{op_type}")
            RULES[domain, op_type] = rule
        return rule

    return register


def rule_for(node: ir.Node) -> Rule | None:
    """The rule of a node, or None where onnxruntime runs the op itself."""
    domain = "" if node.domain in ir.ONNX_DOMAINS else node.domain
    return RULES.get((domain, node.op_type))
