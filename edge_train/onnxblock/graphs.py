"""What blocks ask of the model they build: fresh names, declared types, graph outputs."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import Error as ProtobufError

from edge_train import dtypes
from edge_train.errors import ArtifactError
from edge_train.graph import ir, onnx_codec
from edge_train.graph.precision import FLOATS
from edge_train.graph.shapes import Shapes
from edge_train.onnxblock import model_accessor

Dims = tuple[ir.Dim, ...]
#: elements up to which a constant may be a shape or axes
_SMALL = 1024


def generate_graph_name(token: str) -> str:
    """A name for a new tensor or node of the base model: ``onnx::<token>::<n>``.

    Outside of a base it cannot know the names of a model: a block that uses one which its model has
    already raises RuntimeError.
    """
    return model_accessor.fresh(token)


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
    """The element type of a float tensor; float32 where it is another or nothing tells it."""
    kind = type_of(model, name)[0]
    return kind if kind in FLOATS else dtypes.FLOAT


def constant(name: str, values: Any, elem_type: int) -> onnx.TensorProto:
    """A tensor of a float, integer or bool type."""
    if elem_type == dtypes.BFLOAT16:  # NumPy has none
        array = np.asarray(values, np.float32)
        return onnx.helper.make_tensor(name, elem_type, array.shape, array.ravel().tolist())
    array = np.asarray(values).astype(dtypes.NUMPY[elem_type])
    return onnx.numpy_helper.from_array(array, name)


def bound(value: float, elem_type: int, is_lower: bool) -> float | int:
    """A bound in the type of what is bounded: of integers the outermost one that is inside."""
    if elem_type not in dtypes.NUMPY or dtypes.NUMPY[elem_type].kind not in "iu":
        return value
    info = np.iinfo(dtypes.NUMPY[elem_type])
    inside = max(min(value, int(info.max)), int(info.min))
    return math.ceil(inside) if is_lower else math.floor(inside)


def opset_of(model: onnx.ModelProto) -> int:
    """The ONNX opset of a model; ArtifactError where it imports none."""
    for item in model.opset_import:
        if item.domain in ir.ONNX_DOMAINS:
            return int(item.version)
    raise ArtifactError(f"the model '{model.graph.name}' imports no ONNX opset")


def register_graph_outputs(model: onnx.ModelProto, output_names: Sequence[str] | str) -> None:
    """Makes the named tensors, sequences and the like the graph outputs.

    LookupError for one that no node makes, and for one whose type nothing tells.
    """
    names = [output_names] if isinstance(output_names, str) else list(output_names)
    known = {value.name: value for value in (*model.graph.value_info, *model.graph.output)}
    outputs = []
    for name in names:
        if name not in known and not node_arg_exists(model, name):
            raise LookupError(f"'{name}' cannot be a graph output: no node makes it")
        outputs.append(known.get(name) or _inferred_info(model, name))
    del model.graph.output[:]
    model.graph.output.extend(outputs)


def _inferred_info(model: onnx.ModelProto, name: str) -> onnx.ValueInfoProto:
    """The declaration of what is not declared; LookupError if nothing tells its type."""
    declared = {value.name: value for value in inferred_types(model)}
    info = declared.get(name)
    if info is not None and info.type.WhichOneof("value") != "tensor_type":
        return info
    elem_type, dims = type_of(model, name)
    if elem_type is not None:
        return value_info(name, elem_type, dims)
    if info is not None and info.type.tensor_type.elem_type:
        return info
    raise LookupError(
        f"nothing tells the type of '{name}': declare it, self.base.graph.value_info.append("
        "onnx.helper.make_tensor_value_info(name, type, shape))"
    )


def inferred_types(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """The declarations of a model's inner tensors, with those that ``onnx`` infers.

    The declared ones alone where it cannot infer them (foreign operators, types that contradict).
    """
    try:
        light = onnx.shape_inference.infer_shapes(_light(model))
    except (onnx.shape_inference.InferenceError, ValueError, RuntimeError, ProtobufError):
        return list(model.graph.value_info)
    return list(light.graph.value_info)


def _light(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with its large initializers declared only: inference reads shapes and axes, and
    cannot take a model above 2 GiB."""
    made = onnx.ModelProto(ir_version=model.ir_version)
    made.opset_import.extend(model.opset_import)
    made.functions.extend(model.functions)
    made.graph.name = model.graph.name
    for field in ("node", "input", "output", "value_info", "sparse_initializer"):
        getattr(made.graph, field).extend(getattr(model.graph, field))
    for tensor in model.graph.initializer:
        if math.prod(tensor.dims) <= _SMALL:
            made.graph.initializer.append(tensor)
        else:
            shape = onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
            shape.data_location = onnx.TensorProto.EXTERNAL
            made.graph.initializer.append(shape)
    return made


def with_inferred_types(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of the model that declares what can be inferred of its inner tensors."""
    made = copy.deepcopy(model)
    declare_inferred(made)
    return made


def declare_inferred(model: onnx.ModelProto) -> None:
    """Declares what can be inferred of a model's inner tensors, in the model itself."""
    infos = inferred_types(model)
    del model.graph.value_info[:]
    model.graph.value_info.extend(infos)


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
