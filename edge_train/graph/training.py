"""From a forward graph with a loss to the training, eval and optimizer graphs.

The structure is that of onnxruntime-training 1.19.2 (inputs: the user's, parameters, gradient
buffers, ``lazy_reset_grad``; outputs: the loss first, then one flag a trained parameter), so that
either runtime trains it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from edge_train import dtypes
from edge_train.errors import ArtifactError, UnsupportedOp
from edge_train.graph import ir
from edge_train.graph.autodiff import differentiate, survey
from edge_train.graph.inference import enter_inference_mode
from edge_train.graph.masters import with_float32_parameters
from edge_train.graph.parameters import Choice, Selection, select
from edge_train.graph.passes import domains_of, live_nodes, outer_reads
from edge_train.graph.prepare import prepare, tidy
from edge_train.graph.prepare.faults import explained
from edge_train.graph.shapes import Shapes

RESET = "lazy_reset_grad"
_log = logging.getLogger("edge_train")


@dataclass(frozen=True)
class Built:
    """The two graphs and the parameters that are their inputs, in the order of these inputs.

    ``statistics`` were asked to be trained and are frozen: they move by themselves.
    """

    training: ir.Model
    eval: ir.Model
    trainable: tuple[ir.Tensor, ...]
    frozen: tuple[ir.Tensor, ...]
    statistics: tuple[str, ...] = ()


def build(
    forward: ir.Model, outputs: Sequence[str], choice: Choice, problems: Sequence[str] = ()
) -> Built:
    """Differentiates ``outputs[0]``, the loss, with regard to the chosen parameters.

    ``problems`` found earlier join the report. The parameters have their data in the type and place
    they had in ``forward``; the graphs take float32. Errors: ArtifactError listing every problem,
    UnsupportedOp where all of them are nodes that cannot be differentiated.
    """
    with explained(forward):
        return _built(forward, outputs, choice, problems)


def _built(
    forward: ir.Model, outputs: Sequence[str], choice: Choice, problems: Sequence[str]
) -> Built:
    forward = tidy(forward, choice.names())
    graph = forward.graph
    chosen = select(graph, choice)
    found = [*problems, *chosen.problems, *_broken_links(graph, outputs)]
    if not found or chosen.trainable:
        plain, forward = forward, with_float32_parameters(forward, chosen.trainable)
        prepared, shapes, missing = _surveyed(forward, outputs, chosen)
        if forward is not plain and not missing.problems:
            # what the loss does not reach is frozen, and keeps its own type
            chosen = missing.chosen
            forward = with_float32_parameters(plain, chosen.trainable)
            prepared, shapes, missing = _surveyed(forward, outputs, chosen)
        if not problems:  # without a loss these would be about the model's own output
            found += missing.problems
        if missing.unsupported and not found:
            raise UnsupportedOp(_report(graph.name, missing.unsupported))
        found += missing.unsupported
        chosen = missing.chosen
    if found:
        raise ArtifactError(_report(graph.name, found))
    training = _training(prepared, shapes, outputs, chosen.trainable, chosen.frozen)
    tensors = graph.initializers
    return Built(
        training,
        eval_graph(forward, outputs, chosen.trainable, chosen.frozen),
        tuple(tensors[name] for name in chosen.trainable),
        tuple(tensors[name] for name in chosen.frozen),
        chosen.statistics,
    )


def _report(name: str, problems: Sequence[str]) -> str:
    what = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    listed = "\n  ".join(problems)
    return f"the model '{name}' cannot be made trainable, {what}:\n  {listed}"


def _broken_links(graph: ir.Graph, outputs: Sequence[str]) -> list[str]:
    """Tensors that are asked for but made by nothing."""
    made = {name for node in graph.nodes for name in node.outputs}
    made.update(value.name for value in graph.inputs)
    near = [value.name for value in graph.outputs]
    ends = [
        f"the output '{name}' is made by no node; the outputs are {near}"
        for name in dict.fromkeys(outputs)
        if name not in made
    ]
    made.update(graph.initializers)
    reads = ((node, name) for node in graph.nodes for name in node.inputs if name)
    return ends + [
        f"{node.describe()} reads '{name}', which nothing makes"
        for node, name in reads
        if name not in made
    ]


@dataclass(frozen=True)
class _Survey:
    chosen: Selection
    problems: list[str]
    unsupported: list[str]


def _surveyed(
    forward: ir.Model, outputs: Sequence[str], chosen: Selection
) -> tuple[ir.Model, Shapes, _Survey]:
    """The prepared model and everything that would stop the walk back from the loss."""
    try:
        prepared = prepare(forward, {*outputs, *chosen.trainable, *chosen.frozen})
    except UnsupportedOp as error:
        return forward, Shapes(), _Survey(chosen, [], [str(error)])
    except ArtifactError as error:
        return forward, Shapes(), _Survey(chosen, [str(error)], [])
    shapes = Shapes.of(prepared)
    path = survey(prepared.graph, shapes, outputs[0], chosen.trainable)
    problems = list(path.problems)
    lost = set(path.unreached)
    if lost and not path.problems:
        problems += [
            f"the loss '{outputs[0]}' does not depend on '{name}'; leave it out of requires_grad"
            for name in chosen.trainable
            if name in lost & chosen.asked
        ]
        if lost - chosen.asked:
            _log.info("frozen, the loss does not depend on them: %s", sorted(lost - chosen.asked))
    kept = set(chosen.trainable) - lost
    if not kept and not problems:
        problems.append(f"nothing to train: the loss '{outputs[0]}' depends on no parameter")
    parameters = {*chosen.trainable, *chosen.frozen}
    order = [name for name in forward.graph.initializers if name in parameters]
    chosen = replace(
        chosen,
        trainable=tuple(name for name in order if name in kept),
        frozen=tuple(name for name in order if name not in kept),
    )
    return prepared, shapes, _Survey(chosen, problems, list(path.missing))


def eval_graph(
    model: ir.Model, outputs: Sequence[str], trainable: Sequence[str], frozen: Sequence[str]
) -> ir.Model:
    """The forward graph with the loss, at its own opset; parameters become inputs."""
    return _with_parameter_inputs(enter_inference_mode(model, outputs), outputs, trainable, frozen)


def training_graph(
    model: ir.Model, outputs: Sequence[str], trainable: Sequence[str], frozen: Sequence[str]
) -> ir.Model:
    """The graph that computes ``outputs`` (the loss first) and adds gradients to their buffers.

    Errors: UnsupportedOp for nodes without gradient, ArtifactError for a parameter that the loss
    does not depend on.
    """
    prepared = prepare(model, {*outputs, *trainable, *frozen})
    return _training(prepared, Shapes.of(prepared), outputs, trainable, frozen)


def _training(
    prepared: ir.Model,
    shapes: Shapes,
    outputs: Sequence[str],
    trainable: Sequence[str],
    frozen: Sequence[str],
) -> ir.Model:
    graph, gradients = differentiate(prepared.graph, shapes, outputs[0], trainable, frozen)
    lost = [name for name in trainable if name not in gradients]
    if lost:
        raise ArtifactError(
            f"the loss '{outputs[0]}' does not depend on the parameters {lost}; leave them out of "
            "requires_grad"
        )
    _check_names(graph)
    graph = replace(graph, value_info=_value_info(graph, shapes))
    whole = _with_parameter_inputs(
        replace(prepared, graph=graph), [*outputs, *gradients.values()], trainable, frozen
    )
    return _accumulated(whole, outputs, gradients)


def _check_names(graph: ir.Graph) -> None:
    """ArtifactError where the model has a tensor with the name of a gradient."""
    names = [*{value.name for value in graph.inputs} | set(graph.initializers), RESET]
    names += [name for node in graph.nodes for name in node.outputs if name]
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise ArtifactError(
            f"the model has tensors named {twice}, as gradients are (<tensor>_grad and "
            f"'{RESET}'): rename them"
        )


def _value_info(graph: ir.Graph, shapes: Shapes) -> dict[str, ir.Value]:
    made = {name for node in graph.nodes for name in node.outputs if name}
    known = {name: shapes.elem_type(name) for name in made if shapes.dims(name) is not None}
    return {name: ir.Value(name, kind, shapes.dims(name)) for name, kind in known.items() if kind}


def _with_parameter_inputs(
    model: ir.Model, outputs: Sequence[str], trainable: Sequence[str], frozen: Sequence[str]
) -> ir.Model:
    graph = model.graph
    nodes = live_nodes(graph.nodes, outputs)
    used = {name for node in nodes for name in outer_reads(node)} | set(outputs)
    names = {*trainable, *frozen}
    parameters = [t for name, t in graph.initializers.items() if name in names]
    inputs = [value for value in graph.inputs if value.name not in graph.initializers]
    inputs += [ir.Value(t.name, t.data_type, t.dims) for t in parameters]
    rest = {name: t for name, t in graph.initializers.items() if name not in names}
    declared = {value.name: value for value in graph.outputs} | graph.value_info
    shapes = Shapes.of(model)
    ends = [
        declared.get(name) or ir.Value(name, shapes.elem_type(name), shapes.dims(name))
        for name in outputs
    ]
    return replace(
        model,
        graph=replace(
            graph,
            nodes=nodes,
            inputs=inputs,
            outputs=ends,
            initializers={name: t for name, t in rest.items() if name in used},
            value_info={n: v for n, v in graph.value_info.items() if n in used},
        ),
        opset_imports=_used_imports(model, nodes),
    )


def _used_imports(model: ir.Model, nodes: Sequence[ir.Node]) -> list[tuple[str, int]]:
    """Without domains that no node is of: their version could be unknown to the runtime."""
    used = {*ir.ONNX_DOMAINS, *domains_of(nodes)}
    return [item for item in model.opset_imports if item[0] in used]


def _accumulated(model: ir.Model, outputs: Sequence[str], gradients: Mapping[str, str]) -> ir.Model:
    graph = model.graph
    nodes, inputs = list(graph.nodes), list(graph.inputs)
    ends = [value for value in graph.outputs if value.name in outputs]
    types = {value.name: value for value in graph.inputs}
    for parameter in (value.name for value in graph.inputs if value.name in gradients):
        buffer, flag = (f"{parameter}_grad.accumulation.{end}" for end in ("buffer", "out"))
        inputs.append(replace(types[parameter], name=buffer))
        name = f"GradientAccumulator{len(ends)}"
        reads = [buffer, gradients[parameter], RESET]
        nodes.append(ir.make_node("InPlaceAccumulatorV2", reads, [flag], name, ir.MICROSOFT))
        ends.append(ir.Value(flag, dtypes.BOOL, (1,)))
    inputs.append(ir.Value(RESET, dtypes.BOOL, (1,)))
    imports = [pair for pair in model.opset_imports if pair[0] != ir.MICROSOFT]
    return replace(
        model,
        graph=replace(graph, nodes=nodes, inputs=inputs, outputs=ends),
        opset_imports=[*imports, (ir.MICROSOFT, 1)],
    )
