"""ONNX model <-> checkpoint, and an ONNX model's weights inside it or in a file beside it.

The model is never held in memory: its graph is read without its large tensors, and written with
their bytes copied from where they lie (``model_file``).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from edge_train import dtypes, export, model_file
from edge_train.checkpoint.format import Checkpoint
from edge_train.checkpoint.source import Readable
from edge_train.checkpoint.tensor import Tensor
from edge_train.convert import foreign, intake, lazy
from edge_train.convert.foreign import described
from edge_train.errors import ArtifactError, CheckpointError
from edge_train.graph import ir
from edge_train.graph.parameters import Choice, select
from edge_train.graph.passes import evaluation_form
from edge_train.graph.prepare import with_weights
from edge_train.graph.prepare.faults import explained
from edge_train.graph.prepare.weights import weights_as_initializers
from edge_train.model_file import OpenModel

Path = str | os.PathLike[str]
_CASTS = (dtypes.FLOAT, dtypes.FLOAT16, dtypes.DOUBLE, dtypes.BFLOAT16)


def from_onnx(
    model: Readable,
    destination: Path,
    *,
    like: Readable | None = None,
    train: Sequence[str] | None = None,
    freeze: Sequence[str] = (),
) -> None:
    """Write the weights of a model as a checkpoint.

    With ``like`` (a checkpoint, which may be nominal) it has the names and the split of that one:
    this is how the weights of another training of the same network get into its artifacts. Without,
    ``train`` and ``freeze`` (names or patterns) choose as in ``generate_artifacts``. Trained
    parameters in half or double precision become float32. What ``generate_artifacts`` takes for a
    weight is one here too: values in Constant nodes, copies that are trained on their own.

    Raises ArtifactError for a damaged model, for names that are not there, and for external data
    that is missing, short or outside the model's folder; CheckpointError for what does not fit
    ``like``; ValueError for ``like`` together with names.
    """
    if like is not None and (train is not None or freeze):
        raise ValueError("the split is that of 'like' already: name no parameters")
    with model_file.opened(model) as opened:
        if like is None:
            checkpoint = _chosen(
                opened, Choice(None if train is None else tuple(train), tuple(freeze))
            )
        else:
            with intake.opened(like) as pattern:
                checkpoint = _like(opened, pattern, f"model {intake.label_of(model)}")
        intake.write(checkpoint, destination)


def _chosen(opened: OpenModel, choice: Choice) -> Checkpoint:
    opened = _lifted(opened, choice.names())
    selection = select(opened.model.graph, choice)
    if selection.problems:
        raise ArtifactError("; ".join(selection.problems))
    return Checkpoint(
        trainable=tuple(_float32(opened.tensor(name)) for name in selection.trainable),
        frozen=tuple(opened.tensor(name) for name in selection.frozen),
    )


def _float32(tensor: Tensor) -> Tensor:
    return lazy.cast(tensor, dtypes.FLOAT) if lazy.is_float(tensor) else tensor


def _like(opened: OpenModel, pattern: Checkpoint, label: str) -> Checkpoint:
    opened = _lifted(opened, intake.parameters(pattern))
    there = opened.model.graph.initializers
    trained = {tensor.name for tensor in pattern.trainable}
    wanted = [name for name in intake.parameters(pattern) if name in there]
    found = {name: opened.tensor(name) for name in wanted}
    found = {name: _float32(t) if name in trained else t for name, t in found.items()}
    return foreign.arranged_like(found, label, pattern)


def _lifted(opened: OpenModel, names: Collection[str]) -> OpenModel:
    """The model with every weight among its initializers."""
    with explained(opened.model):
        model = with_weights(_with_copied(opened, names), names)
    tensors = {**model.graph.initializers}
    for name, tensor in opened.model.graph.initializers.items():
        if name in tensors:
            tensors[name] = tensor
    graph = replace(model.graph, initializers=tensors)
    return OpenModel(replace(model, graph=graph), opened.data)


def _with_copied(opened: OpenModel, names: Collection[str]) -> ir.Model:
    """The model with the data in it of those initializers whose copies may be other weights."""
    graph = opened.model.graph
    tensors = dict(graph.initializers)
    for node in graph.nodes:
        source = tensors.get(node.input(0))
        copies = node.op_type == "Identity" or (
            node.op_type == "Transpose" and node.output(0) in names
        )
        if copies and source is not None and source.raw is None and source.strings is None:
            raw = opened.tensor(source.name).raw_bytes()
            tensors[source.name] = replace(source, raw=raw, external=())
    return replace(opened.model, graph=replace(graph, initializers=tensors))


def to_onnx(
    checkpoint: Readable,
    model: Readable,
    destination: Path,
    *,
    outputs: Sequence[str] | None = None,
    external_data: bool = False,
    partial: bool = False,
) -> tuple[str, ...]:
    """Write ``model`` with the weights of a checkpoint; returns the names that it has no place for.

    ``model`` is the forward model, whose initializers are replaced (a parameter that a Constant
    node or a copy of another holds becomes one), or an eval graph, whose parameters are inputs and
    become initializers. ``outputs`` cuts it down to what makes these, as
    ``export_model_for_inferencing`` does. ``external_data``: weights in ``<destination>.data``.
    A parameter without a place is an error, unless ``partial``; one of another shape always is. A
    weight that the model has in half or double precision is rounded to that.

    Raises NominalStateError, CheckpointError and its children, ArtifactError, ValueError.
    """
    with (
        intake.opened_full(checkpoint, "an ONNX model") as state,
        model_file.opened(model) as opened,
    ):
        parameters = intake.parameters(state)
        with explained(opened.model):
            opened = replace(opened, model=weights_as_initializers(opened.model, parameters))
        graph = opened.model.graph
        inputs = {value.name: value for value in graph.inputs}
        homeless = tuple(
            name for name in parameters if name not in graph.initializers and name not in inputs
        )
        if len(homeless) == len(parameters) or (homeless and not partial):
            raise ArtifactError(
                f"model {intake.label_of(model)} has no place for {list(homeless[:8])} "
                f"({len(homeless)} of {len(parameters)} parameters); it has "
                f"{list(graph.initializers)[:8]}: use the model that the artifacts were made of, "
                "or the eval graph"
            )
        for name in parameters.keys() - set(homeless):
            parameters[name] = fitting(parameters[name], *_place(graph, inputs, name))
        changed = _with_weights(opened, parameters, inputs)
        if outputs is not None:
            changed.model = evaluation_form(changed.model)
            changed = export.inference_model(changed, {}, outputs)
        model_file.write(changed, destination, external=external_data)
    return homeless


def _place(
    graph: ir.Graph, inputs: Mapping[str, ir.Value], name: str
) -> tuple[int | None, tuple[ir.Dim, ...] | None]:
    place = graph.initializers.get(name)
    if place is None:
        return inputs[name].elem_type, inputs[name].dims
    return place.data_type, place.dims


def fitting(tensor: Tensor, wanted: int | None, dims: tuple[ir.Dim, ...] | None) -> Tensor:
    """The tensor in the type of its place, None being any; CheckpointError for another shape, and
    for a type that it cannot be cast to."""
    fits = dims is None or (
        len(dims) == len(tensor.dims)
        and all(
            d == own or not isinstance(d, int) for d, own in zip(dims, tensor.dims, strict=True)
        )
    )
    castable = tensor.data_type in _CASTS and wanted in _CASTS
    if not fits or not (wanted in (None, tensor.data_type) or castable):
        expected = f"{dtypes.name_of(wanted or 0)} {list(dims or ())}"
        raise CheckpointError(
            f"parameter '{tensor.name}' is {described(tensor)}, the model wants {expected}"
        )
    return tensor if wanted is None else lazy.cast(tensor, wanted)


def _with_weights(
    opened: OpenModel, parameters: Mapping[str, Tensor], inputs: Mapping[str, ir.Value]
) -> OpenModel:
    graph = opened.model.graph
    initializers = dict(graph.initializers)
    changed = OpenModel(opened.model, list(opened.data))
    kept = list(graph.inputs)
    for name, tensor in parameters.items():
        if name in initializers:
            old = initializers[name]  # its doc string and the like stay
            initializers[name] = replace(changed.place(tensor), extra=old.extra)
        elif name in inputs:
            initializers[name] = changed.place(tensor)
            kept.remove(inputs[name])
    whole = replace(graph, initializers=initializers, inputs=kept)
    changed.model = replace(opened.model, graph=whole)
    return changed


def rewrite_model(model: Readable, destination: Path, *, external_data: bool) -> None:
    """Write a model with its weights in ``<destination>.data`` (True) or inside (False).

    Raises ArtifactError as ``from_onnx``, and where one file cannot hold them (2 GiB).
    """
    with model_file.opened(model) as opened:
        size = sum(data.nbytes for data in opened.data)
        if not external_data and size > model_file.LARGEST:
            raise ArtifactError(
                f"model {intake.label_of(model)} has {size} bytes of tensors, one file holds at "
                f"most {model_file.LARGEST}: keep the data file"
            )
        model_file.write(opened, destination, external=external_data)
