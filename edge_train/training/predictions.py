"""Which tensor of an eval graph is the prediction, and an eval graph that gives it too."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, replace

from edge_train.errors import ArtifactError
from edge_train.graph import ir
from edge_train.graph.passes import outer_reads
from edge_train.graph.shapes import Shapes

_SHAPELESS = frozenset(("Shape", "Size"))
#: how generate_artifacts names what it adds to a model: onnx::sigmoid_output::12
_OF_THE_LOSS = re.compile(r"onnx::.+::\d+")


@dataclass(frozen=True)
class Judged:
    """What metrics compare: the tensor ``prediction`` with the user input ``target``."""

    prediction: str
    target: str


def judged(model: ir.Model, parameters: Collection[str]) -> Judged | None:
    """The prediction is what the loss meets the last user input with; None where nothing does.

    The first node that reads something made of the target alone, and something made of a parameter.
    What the loss itself makes of the model's tensor before (a Sigmoid, a Log) is walked back.
    """
    graph = model.graph
    users = [value.name for value in graph.inputs if value.name not in parameters]
    if not users:
        return None
    learned, given = set(parameters), {users[-1]}
    for node in graph.nodes:
        reads = [name for name in node.inputs if name]
        models = [name for name in reads if name in learned and name not in parameters]
        if models and given.intersection(reads):
            return Judged(_before_the_loss(graph, models[0]), users[-1])
        if node.op_type in _SHAPELESS:
            continue
        if learned & outer_reads(node):
            learned.update(filter(None, node.outputs))
        elif given.intersection(reads):
            given.update(filter(None, node.outputs))
    return None


def _before_the_loss(graph: ir.Graph, name: str) -> str:
    """The model's own tensor that the loss made ``name`` of."""
    producers = graph.producers()
    while _OF_THE_LOSS.fullmatch(name) and name in producers:
        made = [n for n in producers[name].inputs if n in producers]
        if len(made) != 1:
            break
        name = made[0]
    return name


def giving(model: ir.Model, name: str) -> ir.Model:
    """The eval graph with the tensor ``name`` as an output; ArtifactError if there is none."""
    graph = model.graph
    if any(value.name == name for value in graph.outputs):
        return model
    if not any(name in node.outputs for node in graph.nodes):
        last = [output for node in graph.nodes[-6:] for output in node.outputs if output]
        raise ArtifactError(f"the eval graph makes no tensor '{name}'; its last are {last}")
    shapes = Shapes.of(model)
    value = graph.value_info.get(name) or ir.Value(name, shapes.elem_type(name), shapes.dims(name))
    return replace(model, graph=replace(graph, outputs=[*graph.outputs, value]))
