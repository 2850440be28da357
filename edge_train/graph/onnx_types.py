"""TypeProto <-> element type and dims of a tensor."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import DecodeError

from edge_train.errors import ArtifactError
from edge_train.graph import ir
from edge_train.graph.onnx_schema import SequenceTypeProto


def read_type(message: Any) -> tuple[int | None, tuple[ir.Dim, ...] | None]:
    """Element type and dims of a TypeProto; None for what it leaves open or is no tensor."""
    tensor = message.tensor_type
    elem_type = tensor.elem_type if tensor.HasField("elem_type") else None
    if not tensor.HasField("shape"):
        return elem_type, None
    return elem_type, tuple([_dim(item) for item in tensor.shape.dim])


def tensors_of(value: ir.Value) -> tuple[int | None, tuple[ir.Dim, ...] | None] | None:
    """Element type and dims that a value declares for the tensors of its sequence; None for a value
    that is declared as anything else. Raises ArtifactError for a type that cannot be read.
    """
    if value.type_proto is None:
        return None
    try:
        message = SequenceTypeProto.FromString(value.type_proto)
        if not message.HasField("sequence_type"):
            return None
        return read_type(message.sequence_type.elem_type)
    except (DecodeError, UnicodeDecodeError) as error:
        raise ArtifactError(
            f"the type of '{value.name}' cannot be read ({error}): the graph is damaged; copy or "
            "generate it again"
        ) from error


def _dim(message: Any) -> ir.Dim:
    kind = message.WhichOneof("value")
    if kind is None:
        return None
    size: int = message.dim_value
    return message.dim_param.decode() if kind == "dim_param" else size


def write_type(message: Any, elem_type: int | None, dims: tuple[ir.Dim, ...] | None) -> None:
    """Fills an empty TypeProto."""
    tensor = message.tensor_type
    if elem_type is not None:
        tensor.elem_type = elem_type
    if dims is None:
        return
    tensor.shape.SetInParent()
    for dim in dims:
        item = tensor.shape.dim.add()
        if isinstance(dim, str):
            item.dim_param = dim.encode()
        elif dim is not None:
            item.dim_value = dim
