"""What blocks ask of the model they build: fresh names, declared types, graph outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx

from edge_train import dtypes
from edge_train.errors import ArtifactError
from edge_train.graph import ir, onnx_codec
from edge_train.graph.shapes import Shapes
from edge_train.onnxblock import model_accessor

Dims = tuple[ir.Dim, ...]


def generate_graph_name(token: str) -> str:
    """A name for a new tensor or node of the base model: ``onnx::<token>::<n>``."""
    return model_accessor.current().fresh(token)


def get_output_from_output_name(model: onnx.ModelProto, output_name: str) -> onnx.ValueInfoProto:
    """The declaration of a graph output; LookupError where there is none."""
    return _declared(model.graph.output, output_name, "output")


def get_input_from_input_name(model: onnx.ModelProto, input_name: str) -> onnx.ValueInfoProto:
    """The declaration of a graph input; LookupError where there is none."""
    return _declared(model.graph.input, input_name, "input")


def _declared(values: Sequence[onnx.ValueInfoProto], name: str, what: str) -> onnx.ValueInfoProto:
    for value in values:
        if value.name == name:
            return value
    there = [value.name for value in values]
    raise LookupError(f"'{name}' is not a graph {what}; there are {there}")


def node_arg_exists(model: onnx.ModelProto, node_arg_name: str) -> bool:
    """Whether a tensor of this name is made, read or fed in the graph."""
    graph = model.graph
    if any(value.name == node_arg_name for value in (*graph.input, *graph.initializer)):
        return True
    return any(node_arg_name in (*node.input, *node.output) for node in graph.node)


def type_of(model: onnx.ModelProto, name: str) -> tuple[int | None, Dims | None]:
    """Element type and dims of a tensor, declared or inferred; None for what nothing tells."""
    graph = model.graph
    for values in (graph.input, graph.output, graph.value_info):
        for value in values:
            tensor_type = value.type.tensor_type
            if value.name == name and tensor_type.elem_type and tensor_type.HasField("shape"):
                return _of_type(tensor_type)
    for tensor in graph.initializer:
        if tensor.name == name:
            return tensor.data_type, tuple(tensor.dims)
    shapes = Shapes.of(to_ir(model))
    return shapes.elem_type(name), shapes.dims(name)


def _of_type(tensor_type: onnx.TypeProto.Tensor) -> tuple[int, Dims]:
    dims = tuple(
        dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None
        for dim in tensor_type.shape.dim
    )
    return tensor_type.elem_type, dims


def forget_repeated_symbols(value: onnx.ValueInfoProto) -> None:
    """Leaves sizes open that share a symbol: exporters do not mean by it that they are equal."""
    dims = value.type.tensor_type.shape.dim
    names = [dim.dim_param for dim in dims]
    for dim, name in zip(dims, names, strict=True):
        if name and names.count(name) > 1:
            dim.ClearField("dim_param")


def float_type_of(model: onnx.ModelProto, name: str) -> Any:
    """The element type of a tensor; float32 where nothing tells it."""
    return type_of(model, name)[0] or dtypes.FLOAT


def opset_of(model: onnx.ModelProto) -> int:
    """The ONNX opset of a model; ArtifactError where it imports none."""
    for item in model.opset_import:
        if item.domain in ir.ONNX_DOMAINS:
            return int(item.version)
    raise ArtifactError(f"the model '{model.graph.name}' imports no ONNX opset")


def register_graph_outputs(model: onnx.ModelProto, output_names: Sequence[str] | str) -> None:
    """Makes the named tensors the graph outputs; LookupError for one that no node makes."""
    names = [output_names] if isinstance(output_names, str) else list(output_names)
    known = {value.name: value for value in (*model.graph.value_info, *model.graph.output)}
    outputs = []
    for name in names:
        if name not in known and not node_arg_exists(model, name):
            raise LookupError(f"'{name}' cannot be a graph output: no node makes it")
        outputs.append(known.get(name) or value_info(name, *type_of(model, name)))
    del model.graph.output[:]
    model.graph.output.extend(outputs)


def weight_names(model: onnx.ModelProto) -> frozenset[str]:
    """What a model has before a loss is added: initializers, and tensors made by its nodes, which
    may turn out to be constants."""
    made = (name for node in model.graph.node for name in node.output)
    return frozenset((*(tensor.name for tensor in model.graph.initializer), *made))


def value_info(name: str, elem_type: int | None, dims: Dims | None) -> onnx.ValueInfoProto:
    """A tensor declaration."""
    shape = None if dims is None else list(dims)
    return onnx.helper.make_tensor_value_info(name, elem_type or dtypes.FLOAT, shape)


def to_ir(model: onnx.ModelProto) -> ir.Model:
    """The model as plain data, external tensors left where they are."""
    return onnx_codec.decode(model.SerializeToString())


def from_ir(model: ir.Model) -> onnx.ModelProto:
    """Plain data as a ModelProto."""
    message = onnx.ModelProto()
    message.ParseFromString(onnx_codec.encode(model))
    return message
