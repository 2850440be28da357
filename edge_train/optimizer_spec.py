"""Reads optimizer_model.onnx: which optimizer it describes, with which numbers.

The file is a description here. No session is made of it, so its IR version and opset do not matter.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

import numpy as np

from edge_train.errors import ArtifactError, UnsupportedOp
from edge_train.graph import ir, onnx_codec
from edge_train.optimizer_graph import CLIP, PLUMBING, Declared, Operands, declared, key

_MOMENTS = ("first_order_moments", "second_order_moments")
_ADAM = ("learning_rate", "step", "params", "gradients", *_MOMENTS)
_SGD = ("learning_rate", "params", "gradients")
#: op -> what its inputs are, in order; the last two update one tensor each
_READS = {
    "AdamWOptimizer": _ADAM,
    "SGDOptimizerV2": _SGD,
    "AdamOptimizer": _ADAM,
    "SGDOptimizer": _SGD,
}
_TENSOR_LISTS = ("params", "gradients", *_MOMENTS)
_INPUTS = {_ADAM: _ADAM, _SGD: (*_ADAM[:4], _MOMENTS[0])}
_SUPPORTED = (
    "supported are AdamWOptimizer, SGDOptimizerV2, AdamOptimizer and SGDOptimizer, every one with "
    f"the same settings, optionally with one {CLIP} before them (domain '{ir.MICROSOFT}'). Pass "
    "the optimizer_model.onnx that generate_artifacts wrote"
)


@dataclass(frozen=True)
class OptimizerSpec:
    """An optimizer and its hyper-parameters, each the exact value of the artifact's float32."""

    op_type: str
    max_grad_norm: float | None = None
    mode: int = 0
    correct_bias: bool = True
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.01
    tensors: int | None = None  # how many the graph names one by one; None: however many there are
    declared: tuple[Declared, ...] = ()  # the sizes that the graph says its tensors have

    @property
    def is_adamw(self) -> bool:
        return self.op_type == "AdamWOptimizer"

    @property
    def moments(self) -> int:
        """How many moments a checkpoint keeps; SGD has one that is never used."""
        return 2 if self.is_adamw else 1


def read_spec(source: onnx_codec.Source) -> OptimizerSpec:
    """The optimizer that a file (path or bytes) describes.

    Recognised are AdamWOptimizer and SGDOptimizerV2 over whole sequences, and the same, or
    AdamOptimizer and SGDOptimizer, over the tensors of sequences one by one; copies and an
    InplaceClipGradNorm may stand in between. Raises UnsupportedOp naming the nodes of anything
    else, ArtifactError if they are not connected as expected or read tensors that are not float32.
    """
    what = "the optimizer graph"
    if isinstance(source, (str, os.PathLike)):
        what = f"the optimizer graph '{os.fspath(source)}'"
    graph = onnx_codec.load(source).graph
    updates, clip = _nodes(graph, what)
    specs, places = [], []
    for node in updates:
        places.append(_places(graph, node, clip, what))
        specs.append(_settings(node, None if clip is None else _max_norm(clip, what), what))
    expected = _INPUTS[_READS[updates[0].op_type]]
    _compare(tuple(value.name for value in graph.inputs), expected, what)
    other = next((i for i, spec in enumerate(specs) if spec != specs[0]), None)
    if other is not None:
        raise UnsupportedOp(
            f"{what}: {updates[0].describe()} and {updates[other].describe()} have different "
            "settings; groups of parameters with settings of their own are not supported"
        )
    sizes = declared(graph, _TENSOR_LISTS, what)
    return replace(specs[0], tensors=_count(places, updates, what), declared=sizes)


def _nodes(graph: ir.Graph, what: str) -> tuple[list[ir.Node], ir.Node | None]:
    known = [node for node in graph.nodes if node.domain == ir.MICROSOFT]
    updates = [node for node in known if node.op_type in _READS]
    clips = [node for node in known if node.op_type == CLIP]
    foreign = [n for n in graph.nodes if n not in updates + clips and key(n) not in PLUMBING]
    if foreign or not updates or len(clips) > 1:
        wrong = foreign or graph.nodes
        nodes = ", ".join(node.describe() for node in wrong) or "no nodes"
        raise UnsupportedOp(f"{what} has {nodes}; {_SUPPORTED}")
    return updates, clips[0] if clips else None


def _places(
    graph: ir.Graph, node: ir.Node, clip: ir.Node | None, what: str
) -> tuple[int, ...] | None:
    """Which tensors of the sequences a node updates; None: all of them."""
    where, reads = f"{node.describe()} in {what}", _READS[node.op_type]
    operands = Operands(graph, what)
    used, rest = node.inputs[: len(reads)], [name for name in node.inputs[len(reads) :] if name]
    if len(rest) == 1 and operands.number(rest[0]) == 1:
        rest = []  # an update signal that is always true
    found = [operands.of(name) for name in used]
    clipped = "gradients" if clip is None else clip.output(0)
    expected = tuple(clipped if name == "gradients" else name for name in reads)
    _compare((*(operand.label for operand in found), *rest), expected, where)
    if clip is not None:
        _compare((found[reads.index("gradients")].source,), ("gradients",), clip.describe())
    lists = [operand.places for operand in found if operand.source in _TENSOR_LISTS]
    single = node.op_type in ("AdamOptimizer", "SGDOptimizer")
    if len(set(lists)) != 1 or (single and (lists[0] is None or len(lists[0]) != 1)):
        raise ArtifactError(
            f"{where} reads the tensors {lists} of {', '.join(expected[-len(lists) :])}; expected "
            f"the same {'single one' if single else 'ones'} of each"
        )
    return lists[0]


def _count(places: list[tuple[int, ...] | None], updates: list[ir.Node], what: str) -> int | None:
    """How many tensors the updates cover, each once; None for all of a sequence."""
    if places == [None]:
        return None
    covered = sorted(place for part in places for place in part or (-1,))
    if covered != list(range(len(covered))):
        nodes = ", ".join(node.describe() for node in updates)
        raise UnsupportedOp(
            f"{what} has {nodes}, which do not update every tensor once (tensors {covered}); "
            f"{_SUPPORTED}"
        )
    return len(covered)


def _compare(got: tuple[str, ...], expected: tuple[str, ...], where: str) -> None:
    if got != expected:
        raise ArtifactError(
            f"{where} has the inputs {', '.join(got) or 'none'}; expected {', '.join(expected)}"
        )


def _settings(node: ir.Node, max_grad_norm: float | None, what: str) -> OptimizerSpec:
    if node.op_type in ("SGDOptimizer", "SGDOptimizerV2"):
        return OptimizerSpec("SGDOptimizerV2", max_grad_norm)
    return _adamw(node, max_grad_norm, what)


def _max_norm(clip: ir.Node, what: str) -> float:
    norm_type = clip.attr("norm_type", "fro")
    if norm_type != "fro":
        raise UnsupportedOp(
            f"{clip.describe()} in {what} has norm_type '{norm_type}'; supported is 'fro'"
        )
    return _float(clip, "max_norm", 1.0)


def _adamw(node: ir.Node, max_grad_norm: float | None, what: str) -> OptimizerSpec:
    names = ("adam_mode", "correct_bias", "weight_decay")
    decay = 0.01
    if node.op_type == "AdamOptimizer":
        names, decay = ("weight_decay_mode", "do_bias_correction", "lambda"), 0.0
    mode, correct_bias = node.attr(names[0], 0), node.attr(names[1], 1)
    if (mode, correct_bias) not in ((0, 1), (1, 0), (1, 1)):
        raise ArtifactError(
            f"{node.describe()} in {what} has {names[0]} {mode} with {names[1]} {correct_bias}; "
            f"expected {names[0]} 0 with {names[1]} 1, or {names[0]} 1 with {names[1]} 0 or 1"
        )
    return OptimizerSpec(
        op_type="AdamWOptimizer",
        max_grad_norm=max_grad_norm,
        mode=mode,
        correct_bias=bool(correct_bias),
        betas=(_float(node, "alpha", 0.9), _float(node, "beta", 0.999)),
        eps=_float(node, "epsilon", 1e-8),
        weight_decay=_float(node, names[2], decay),
    )


def _float(node: ir.Node, name: str, default: float) -> float:
    # An attribute is float32; the schema's default is rounded the same way.
    return float(np.float32(node.attr(name, default)))
