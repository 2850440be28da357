"""The one table of gradient rules, with three verdicts: a rule, no gradient, refused with a hint.

A rule takes the builder, the forward node and the gradients of its outputs ("" where none flows)
and returns one gradient per input: None for no gradient. It asks ``g.wants(i)`` before it spends
nodes on input i. Rules are written once, for opset 21.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edge_train.graph import ir

Rule = Callable[..., "str | Sequence[str | None]"]


@dataclass(frozen=True)
class Entry:
    """A rule with the inputs it never gives a gradient (``cut``); ``broadcasts``: the driver sums
    each gradient down to its input's shape; ``quantized``: the rule also takes integer tensors that
    hold quantized values, whose gradients are those of the values they stand for."""

    rule: Rule
    cut: tuple[int, ...] = ()
    broadcasts: bool = False
    quantized: bool = False


RULES: dict[tuple[str, str], Entry] = {}
NO_GRADIENT: set[tuple[str, str]] = set()
REFUSED: dict[tuple[str, str], str] = {}


def gradient(
    *op_types: str,
    domain: str = "",
    cut: Sequence[int] = (),
    broadcasts: bool = False,
    quantized: bool = False,
) -> Callable[[Rule], Rule]:
    """Registers the decorated function as the gradient of the named ops."""

    def register(rule: Rule) -> Rule:
        for op_type in op_types:
            _claim(domain, op_type)
            RULES[domain, op_type] = Entry(rule, tuple(cut), broadcasts, quantized)
        return rule

    return register


def no_gradient(*op_types: str, domain: str = "") -> None:
    """Ops whose outputs do not change smoothly with their inputs: the path is cut."""
    for op_type in op_types:
        _claim(domain, op_type)
        NO_GRADIENT.add((domain, op_type))


def refuse(op_type: str, hint: str, domain: str = "") -> None:
    """An op on the path is an error with this hint."""
    _claim(domain, op_type)
    REFUSED[domain, op_type] = hint


def _claim(domain: str, op_type: str) -> None:
    key = (domain, op_type)
    if key in RULES or key in NO_GRADIENT or key in REFUSED:
        raise ValueError(f"two gradient verdicts for {domain or 'ai.onnx'}::{op_type}")


def key_of(node: ir.Node) -> tuple[str, str]:
    """The table key of a node."""
    return ("" if node.domain in ir.ONNX_DOMAINS else node.domain, node.op_type)
