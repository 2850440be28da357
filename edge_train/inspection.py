"""What is in a checkpoint or a model, as plain data: names, shapes, dtypes, sizes, settings.

No session is made and no onnx package is needed; of a checkpoint no tensor data is read.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from edge_train import dtypes
from edge_train.checkpoint import source as sources
from edge_train.checkpoint.files import open_checkpoint
from edge_train.checkpoint.format import Checkpoint, Group
from edge_train.checkpoint.tensor import Tensor
from edge_train.errors import ArtifactError, EdgeTrainError
from edge_train.graph import ir, onnx_codec
from edge_train.graph.roles import Roles, accumulators
from edge_train.optimizer_spec import read_spec

_CHECKPOINT = b"ODTC"
_PRIVATE = "edge_train."
_OPTIMIZERS = ("AdamWOptimizer", "SGDOptimizerV2", "AdamOptimizer", "SGDOptimizer")

Fields = dict[str, Any]


def inspect(path: Path) -> list[Fields]:
    """One record for a file, one for each checkpoint (old folders too) and model of a folder.

    Raises FileNotFoundError, CheckpointError, ArtifactError for what cannot be read; ArtifactError
    for a folder with nothing in it that could be.
    """
    if not path.is_dir() or any(path.glob("*.pbseq")):
        return [_of_file(path)]
    found = [file for file in sorted(path.iterdir()) if _is_ours(file)]
    if not found:
        raise ArtifactError(
            f"'{path}' holds no checkpoint and no .onnx file: give one, or a folder with some"
        )
    return [_of_file(file) for file in found]


def _is_ours(path: Path) -> bool:
    if path.name.startswith("."):
        return False
    if not path.is_file():
        return path.is_dir() and any(path.glob("*.pbseq"))
    return path.suffix == ".onnx" or _head(path) == _CHECKPOINT


def _head(path: Path) -> bytes:
    with open(path, "rb") as file:
        return file.read(8)[4:]


def _of_file(path: Path) -> Fields:
    if path.is_dir():
        return _of_checkpoint(path)
    sources.refuse_special(str(path))  # a pipe would wait for ever
    if path.suffix == ".onnx" and _head(path) != _CHECKPOINT:
        return _of_model(path)
    return _of_checkpoint(path) if _head(path) == _CHECKPOINT else _of_unknown(path)


def _of_unknown(path: Path) -> Fields:
    try:
        return _of_model(path)
    except ArtifactError:
        raise ArtifactError(f"'{path}' is neither a checkpoint nor an ONNX model") from None


# ---- checkpoints ------------------------------------------------------------------------------


def _of_checkpoint(path: Path) -> Fields:
    with open_checkpoint(path) as checkpoint:
        kind = "nominal checkpoint" if checkpoint.is_nominal else "checkpoint"
        own = {k: v for k, v in checkpoint.properties.items() if not k.startswith(_PRIVATE)}
        private = {k: v for k, v in checkpoint.properties.items() if k.startswith(_PRIVATE)}
        return {
            "path": str(path),
            "kind": kind,
            "file_bytes": _size(path),
            "external_data": checkpoint.has_external_data,
            "totals": {
                "trainable": _total(checkpoint.trainable, checkpoint.is_nominal),
                "frozen": _total(checkpoint.frozen, checkpoint.is_nominal),
            },
            "parameters": list(_parameters(checkpoint)),
            "optimizer": [_group(group) for group in checkpoint.groups or ()],
            "properties": own,
            "own_properties": private,
        }


def _parameters(checkpoint: Checkpoint) -> Iterator[Fields]:
    for tensors, trainable in ((checkpoint.trainable, True), (checkpoint.frozen, False)):
        for tensor in tensors:
            nominal = checkpoint.is_nominal
            yield {
                "name": tensor.name,
                "shape": None if nominal else list(tensor.dims),
                "dtype": None if nominal else dtypes.name_of(tensor.data_type),
                "bytes": None if nominal else _bytes(tensor),
                "trainable": trainable,
            }


def _group(group: Group) -> Fields:
    moments: dict[str, list[Tensor]] = {}
    for _, tensors in group.moments:
        for tensor in tensors:
            moments.setdefault(tensor.name, []).append(tensor)
    return {
        "name": group.name,
        "step": group.step,
        "initial_learning_rate": group.initial_learning_rate,
        "moments": {name: _total(tensors, False) for name, tensors in sorted(moments.items())},
    }


def _total(tensors: Sequence[Tensor], nominal: bool) -> Fields:
    if nominal:
        return {"tensors": len(tensors), "elements": None, "bytes": None}
    elements = sum(math.prod(tensor.dims) for tensor in tensors)
    return {
        "tensors": len(tensors),
        "elements": elements,
        "bytes": sum(map(_bytes, tensors)),
    }


def _bytes(tensor: Tensor) -> int:
    if tensor.strings is not None:
        return sum(len(item.encode("utf-8", "surrogatepass")) for item in tensor.strings)
    return tensor.nbytes


def _size(path: Path) -> int:
    """The bytes of a file and of the data file that belongs to it, or of a folder's files."""
    if path.is_dir():
        return sum(file.stat().st_size for file in path.iterdir() if file.is_file())
    data = path.with_name(f"{path.name}.data")
    return path.stat().st_size + (data.stat().st_size if data.is_file() else 0)


# ---- models -----------------------------------------------------------------------------------


def _of_model(path: Path) -> Fields:
    try:
        model = onnx_codec.decode(path.read_bytes())
    except ArtifactError as error:
        raise ArtifactError(f"'{path}': {error}") from error
    graph = model.graph
    inputs = list(_inputs(graph, path))
    kind = _kind(graph, inputs)
    record = {
        "path": str(path),
        "kind": kind,
        "file_bytes": path.stat().st_size,
        "ir_version": model.ir_version,
        "opsets": {name or "ai.onnx": version for name, version in model.opset_imports},
        "inputs": inputs,
        "outputs": [_value(value) for value in graph.outputs],
        "initializers": [_initializer(tensor) for tensor in graph.initializers.values()],
        "nodes": len(graph.nodes),
        "ops": dict(Counter(map(_op, _all_nodes(graph.nodes))).most_common()),
    }
    if kind == "optimizer model":
        with suppress(EdgeTrainError):  # a custom one: the nodes tell
            record["optimizer"] = asdict(read_spec(path))
    return record


def _kind(graph: ir.Graph, inputs: list[Fields]) -> str:
    if accumulators(graph):
        return "training model"
    if any(node.op_type in _OPTIMIZERS and node.domain == ir.MICROSOFT for node in graph.nodes):
        return "optimizer model"
    return "eval model" if any(value["role"] == "parameter" for value in inputs) else "model"


def _inputs(graph: ir.Graph, path: Path) -> Iterator[Fields]:
    """The inputs with their roles; frozen parameters are known by the checkpoint beside them."""
    names = _names_beside(path)
    roles = Roles.of(graph, names)
    fed = {value.name for value in roles.user_inputs}
    parameters = {value.name for value in roles.parameters}
    flags = {node.input(2) for node in accumulators(graph)}
    for value in graph.inputs:
        role = "input" if value.name in fed else "gradient buffer"
        if value.name in flags:
            role = "reset flag"
        if value.name in parameters:
            role = "trainable" if value.name in roles.trainable else "parameter"
        yield {**_value(value), "role": role}


def _names_beside(path: Path) -> frozenset[str]:
    """The parameters of the checkpoint that was written with a model: the same prefix."""
    prefix = next((path.name[: -len(end)] for end in _ARTIFACTS if path.name.endswith(end)), None)
    names: frozenset[str] = frozenset()
    if prefix is None:
        return names
    for name in ("checkpoint", "nominal_checkpoint"):
        beside = path.with_name(prefix + name)
        with suppress(EdgeTrainError, OSError), open_checkpoint(beside) as checkpoint:
            return frozenset(t.name for t in checkpoint.trainable + checkpoint.frozen)
    return names


_ARTIFACTS = ("training_model.onnx", "eval_model.onnx")


def _value(value: ir.Value) -> Fields:
    return {
        "name": value.name,
        "shape": None if value.dims is None else list(value.dims),
        "dtype": None if value.elem_type is None else dtypes.name_of(value.elem_type),
    }


def _initializer(tensor: ir.Tensor) -> Fields:
    size = len(tensor.raw) if tensor.raw is not None else None
    external = dict(tensor.external)
    if external:
        size = int(external["length"]) if external.get("length", "").isdecimal() else None
    return {
        "name": tensor.name,
        "shape": list(tensor.dims),
        "dtype": dtypes.name_of(tensor.data_type),
        "bytes": size,
        "external": external.get("location"),
    }


def _all_nodes(nodes: Iterable[ir.Node]) -> Iterator[ir.Node]:
    for node in nodes:
        yield node
        for body in ir.subgraphs(node):
            yield from _all_nodes(body.nodes)


def _op(node: ir.Node) -> str:
    return node.op_type if node.domain in ir.ONNX_DOMAINS else f"{node.domain}.{node.op_type}"
