"""Tensor data that an ONNX file keeps in other files of its folder."""

from __future__ import annotations

import math
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from edge_train import dtypes
from edge_train.errors import ArtifactError
from edge_train.graph import ir


def resolve(model: ir.Model, folder: Path | None) -> ir.Model:
    """The model with the data of external tensors read in; ``folder`` is None without a file.

    ArtifactError if a file is missing, outside the folder, or shorter than the tensor needs.
    """
    change(model.graph, lambda tensor: _read(tensor, folder))
    return model


def change(graph: ir.Graph, changed: Callable[[ir.Tensor], ir.Tensor]) -> None:
    """Replaces every external tensor of a graph, its nodes and bodies, by what ``changed`` says."""
    for name, tensor in graph.initializers.items():
        if tensor.external:
            graph.initializers[name] = changed(tensor)
    for index, node in enumerate(graph.nodes):
        for body in ir.subgraphs(node):
            change(body, changed)
        found = {
            key: replace(attribute, value=changed(attribute.value))
            for key, attribute in node.attributes.items()
            if attribute.type == ir.TENSOR and attribute.value.external
        }
        if found:
            graph.nodes[index] = replace(node, attributes={**node.attributes, **found})


def _read(tensor: ir.Tensor, folder: Path | None) -> ir.Tensor:
    path, offset, length = locate(tensor, folder)
    try:
        with path.open("rb") as file:
            file.seek(offset)
            raw = file.read(length)
    except OSError as error:
        raise _unreadable(tensor, path, error) from error
    return replace(tensor, raw=raw, field="raw_data", external=())


def locate(tensor: ir.Tensor, folder: Path | None) -> tuple[Path, int, int]:
    """File, offset and length of an external tensor's data; ArtifactError as ``resolve``."""
    entries = dict(tensor.external)
    location = entries.get("location", "")
    if folder is None:
        raise ArtifactError(
            f"tensor '{tensor.name}' is in the external file '{location}', which bytes cannot "
            f"lead to: pass the model's path"
        )
    path = _inside(folder, location, tensor.name)
    offset, length = (_count(tensor.name, entries, key) for key in ("offset", "length"))
    try:
        status = path.stat()
    except OSError as error:
        raise _unreadable(tensor, path, error) from error
    if not stat.S_ISREG(status.st_mode):
        raise ArtifactError(f"tensor '{tensor.name}': '{path}' is a device or a pipe, no file")
    size = status.st_size
    needed = _needed(tensor)
    if "length" not in entries:  # files are shared by tensors that may leave it out
        length = size - offset if needed is None else needed
    if offset + length > size or length < 0:
        raise ArtifactError(
            f"tensor '{tensor.name}': bytes {offset} to {offset + length} of '{path}' are "
            f"needed, the file has {size}"
        )
    if needed is not None and length != needed:
        raise ArtifactError(
            f"tensor '{tensor.name}' {list(tensor.dims)} needs {needed} bytes, its external data "
            f"in '{path}' has {length}"
        )
    return path, offset, length


def _needed(tensor: ir.Tensor) -> int | None:
    """The bytes that shape and type ask for; None for types that NumPy lacks."""
    if tensor.data_type not in dtypes.NUMPY:
        return None
    return math.prod(tensor.dims) * dtypes.NUMPY[tensor.data_type].itemsize


def _unreadable(tensor: ir.Tensor, path: Path, error: OSError) -> ArtifactError:
    return ArtifactError(
        f"tensor '{tensor.name}': the external file '{path}' cannot be read: {error.strerror}"
    )


def _inside(folder: Path, location: str, name: str) -> Path:
    """The file, which must lie in the model's folder, links followed."""
    try:
        path = (folder / location).resolve()
        inside = location and path.is_relative_to(folder.resolve()) and not path.is_dir()
    except (OSError, ValueError, RuntimeError):  # a NUL in the name, a loop of links
        inside = False
    if not inside:
        raise ArtifactError(
            f"tensor '{name}': the external file {location!r} is not a file in the model's folder "
            f"'{folder}': put it there"
        )
    return path


def _count(name: str, entries: dict[str, str], key: str) -> int:
    text = entries.get(key, "0")
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise ArtifactError(f"tensor '{name}': the {key} {text!r} of its external data is no size")
    return int(text)
