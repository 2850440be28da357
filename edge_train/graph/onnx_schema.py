"""The ONNX protobuf messages that the IR models, as classes of the installed protobuf package.

Only modelled fields are declared: every other field of a file stays in its message as an unknown
field, which is how onnx_codec carries it. The classes live in a descriptor pool of their own, so
that the onnx package can be imported beside them. Text is declared as bytes: protobuf versions
disagree on what invalid UTF-8 does.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from edge_train import dtypes
from edge_train.graph import ir

_PACKAGE = "edge_train.onnx"

# message, then "name number type" of each field; "*" repeated, "+" repeated and packed
_TABLE = """
Model: ir_version 1 int64, graph 7 Graph, opset_import 8 OperatorSetId*, functions 25 bytes*
OperatorSetId: domain 1 bytes, version 2 int64
Graph: node 1 Node*, name 2 bytes, initializer 5 Tensor*, input 11 ValueInfo*, \
output 12 ValueInfo*, value_info 13 ValueInfo*
Node: input 1 bytes*, output 2 bytes*, name 3 bytes, op_type 4 bytes, attribute 5 Attribute*, \
domain 7 bytes
Attribute: name 1 bytes, f 2 float, i 3 int64, s 4 bytes, t 5 Tensor, g 6 Graph, floats 7 float*, \
ints 8 int64*, strings 9 bytes*, tensors 10 Tensor*, graphs 11 Graph*, type 20 int32
Tensor: dims 1 int64*, data_type 2 int32, float_data 4 float+, int32_data 5 int32+, \
string_data 6 bytes*, int64_data 7 int64+, name 8 bytes, raw_data 9 bytes, double_data 10 double+, \
uint64_data 11 uint64+, external_data 13 StringStringEntry*, data_location 14 int32
StringStringEntry: key 1 bytes, value 2 bytes
ValueInfo: name 1 bytes, type 2 Type
Type: tensor_type 1 TensorType
SequenceType: sequence_type 4 Sequence
Sequence: elem_type 1 Type
TensorType: elem_type 1 int32, shape 2 TensorShape
TensorShape: dim 1 Dimension*
Dimension: dim_value 1 int64, dim_param 2 bytes
Function: name 1 bytes, input 4 bytes*, output 5 bytes*, attribute 6 bytes*, node 7 Node*, \
opset_import 9 OperatorSetId*, domain 10 bytes, attribute_proto 11 Attribute*, overload 13 bytes
FunctionCall: overload 8 bytes
AttributeUse: ref_attr_name 21 bytes
SparseTensor: values 1 Tensor, indices 2 Tensor, dims 3 int64*
SparseGraph: sparse_initializer 15 SparseTensor*
SparseAttribute: sparse_tensor 22 SparseTensor
"""

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "double": _Field.TYPE_DOUBLE,
    "float": _Field.TYPE_FLOAT,
    "int64": _Field.TYPE_INT64,
    "uint64": _Field.TYPE_UINT64,
    "int32": _Field.TYPE_INT32,
    "bytes": _Field.TYPE_BYTES,
}


def _declare(message: Any, text: str) -> None:
    name, number, kind = text.split()
    field = message.field.add(name=name, number=int(number))
    field.label = _Field.LABEL_REPEATED if kind[-1] in "*+" else _Field.LABEL_OPTIONAL
    if kind.endswith("+"):
        field.options.packed = True
    kind = kind.rstrip("*+")
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
    else:
        field.type, field.type_name = _Field.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
    if message.name == "Dimension":
        field.oneof_index = 0


def _classes() -> dict[str, Any]:
    """Message name -> class."""
    file = descriptor_pb2.FileDescriptorProto(name="edge_train/onnx.proto", package=_PACKAGE)
    for line in _TABLE.strip().splitlines():
        name, _, fields = line.partition(":")
        message = file.message_type.add(name=name)
        if name == "Dimension":
            message.oneof_decl.add(name="value")
        for text in fields.split(","):
            _declare(message, text)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    found = {m.name: pool.FindMessageTypeByName(f"{_PACKAGE}.{m.name}") for m in file.message_type}
    return {name: _class_of(descriptor, pool) for name, descriptor in found.items()}


def _class_of(descriptor: Any, pool: Any) -> Any:
    if hasattr(message_factory, "GetMessageClass"):
        return message_factory.GetMessageClass(descriptor)
    return message_factory.MessageFactory(pool).GetPrototype(descriptor)  # protobuf 4.21


_CLASSES = _classes()
ModelProto: Any = _CLASSES["Model"]
TensorProto: Any = _CLASSES["Tensor"]
TypeProto: Any = _CLASSES["Type"]
SequenceTypeProto: Any = _CLASSES["SequenceType"]  # a TypeProto read as that of a sequence
FunctionProto: Any = _CLASSES["Function"]

# what the IR keeps in ``extra`` of a node and an attribute inside functions
FunctionCall: Any = _CLASSES["FunctionCall"]
AttributeUse: Any = _CLASSES["AttributeUse"]

# and what it keeps in that of a graph and of a Constant's attribute
SparseGraph: Any = _CLASSES["SparseGraph"]
SparseAttribute: Any = _CLASSES["SparseAttribute"]

EXTERNAL = 1  # TensorProto.DataLocation

# AttributeProto.type -> the field of the value
VALUE_FIELD = {
    ir.FLOAT: "f",
    ir.INT: "i",
    ir.STRING: "s",
    ir.TENSOR: "t",
    ir.GRAPH: "g",
    ir.FLOATS: "floats",
    ir.INTS: "ints",
    ir.STRINGS: "strings",
    ir.TENSORS: "tensors",
    ir.GRAPHS: "graphs",
}

# data type -> (TensorProto field of typed data, type of its items in raw data). Types not listed
# up to 30 are the 8-bit and smaller floats and integers, one byte an item.
_TYPED_FIELD = {
    dtypes.FLOAT: ("float_data", "<f4"),
    dtypes.COMPLEX64: ("float_data", "<f4"),
    dtypes.DOUBLE: ("double_data", "<f8"),
    dtypes.COMPLEX128: ("double_data", "<f8"),
    dtypes.INT64: ("int64_data", "<i8"),
    dtypes.UINT64: ("uint64_data", "<u8"),
    dtypes.UINT32: ("uint64_data", "<u4"),
    dtypes.INT32: ("int32_data", "<i4"),
    dtypes.INT16: ("int32_data", "<i2"),
    dtypes.UINT16: ("int32_data", "<u2"),
    dtypes.FLOAT16: ("int32_data", "<u2"),
    dtypes.BFLOAT16: ("int32_data", "<u2"),
    dtypes.INT8: ("int32_data", "<i1"),
}


def typed_field(data_type: int) -> tuple[str, str]:
    """The TensorProto field of a data type's typed data, and the NumPy type of its raw items."""
    return _TYPED_FIELD.get(data_type, ("int32_data", "<u1"))
