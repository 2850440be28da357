"""A subset of the trainable parameters, chosen at load: the training graph without the rest.

Artifacts may have a gradient for every weight. Leaving accumulators out lets everything go that
only they needed: gradients, the backward nodes in front of them, and saved activations.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence
from dataclasses import replace

from edge_train.graph import ir
from edge_train.graph.passes import live_nodes, outer_reads
from edge_train.graph.roles import accumulators
from edge_train.patterns import matching

_PATTERN = frozenset("*?[")
_SHOWN = 12


def choose(
    patterns: Sequence[str], trainable: Sequence[str], frozen: Collection[str]
) -> tuple[str, ...]:
    """The ``trainable`` names that a list of names and shell patterns means, in their order.

    A name that contains pattern characters means itself. Raises TypeError for anything but a list
    of strings; ValueError for an empty list, and listing everything that matches no name, with
    near ones, or matches ``frozen`` names only.
    """
    if isinstance(patterns, str) or not isinstance(patterns, (list, tuple)):
        raise TypeError(
            f"trainable: expected a list of names and shell patterns, got {patterns!r}; "
            "a single one is written trainable=['classifier.*']"
        )
    if not all(isinstance(pattern, str) for pattern in patterns):
        raise TypeError(f"trainable: expected strings, got {list(patterns)!r}")
    if not patterns:
        raise ValueError(
            "trainable is empty: name at least one parameter, or leave the argument out to train "
            f"all of them: {_shown(trainable)}"
        )
    chosen: set[str] = set()
    problems: list[str] = []
    for pattern in patterns:
        hits = matching(pattern, trainable)
        if not hits:
            problems.append(_unmatched(pattern, trainable, frozen))
        chosen.update(hits)
    if problems:
        listed = "\n  ".join(problems)
        raise ValueError(f"trainable has {len(problems)} entries that name nothing:\n  {listed}")
    return tuple(name for name in trainable if name in chosen)


def _unmatched(pattern: str, trainable: Sequence[str], frozen: Collection[str]) -> str:
    if held := matching(pattern, frozen):
        return (
            f"'{pattern}' names {_shown(held)}, for which the training graph has no gradient; "
            "generate the artifacts again with it in requires_grad"
        )
    if _PATTERN.intersection(pattern):
        return f"'{pattern}' matches no parameter; the trainable ones are {_shown(trainable)}"
    near = difflib.get_close_matches(pattern, [*trainable, *frozen], 3, cutoff=0.5)
    hint = f"did you mean {near}?" if near else f"the trainable ones are {_shown(trainable)}"
    return f"'{pattern}' is not a parameter; {hint}"


def _shown(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{list(names[:_SHOWN])}{more}"


def training_subset(model: ir.Model, buffers: Collection[str]) -> ir.Model:
    """The training graph that fills the gradient ``buffers`` only."""
    graph = model.graph
    dropped = [node for node in accumulators(graph) if node.input(0) not in buffers]
    if not dropped:
        return model
    gone_inputs = {node.input(0) for node in dropped}
    gone_outputs = {name for node in dropped for name in node.outputs}
    outputs = [value for value in graph.outputs if value.name not in gone_outputs]
    rest = [node for node in graph.nodes if node not in dropped]
    nodes = live_nodes(rest, [value.name for value in outputs])
    kept = replace(
        graph,
        nodes=without_dead_gradients(nodes, {value.name for value in outputs}),
        inputs=[value for value in graph.inputs if value.name not in gone_inputs],
        outputs=outputs,
    )
    return replace(model, graph=kept)


def without_dead_gradients(nodes: Sequence[ir.Node], wanted: Collection[str]) -> list[ir.Node]:
    """The nodes with every gradient that nobody reads left out: rules then do not compute it."""
    read = set(wanted).union(*(outer_reads(node) for node in nodes))
    return [_trimmed(node, read) if _is_gradient(node) else node for node in nodes]


def _is_gradient(node: ir.Node) -> bool:
    return node.domain == ir.MICROSOFT and "Grad" in node.op_type and len(node.outputs) > 1


def _trimmed(node: ir.Node, read: Collection[str]) -> ir.Node:
    outputs = tuple([name if name in read else "" for name in node.outputs])
    return node if outputs == node.outputs else replace(node, outputs=outputs)
