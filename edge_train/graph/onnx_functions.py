"""Model-local functions: FunctionProto bytes -> Function, and what refers to one."""

from __future__ import annotations

from dataclasses import dataclass

from google.protobuf.message import DecodeError

from edge_train.errors import ArtifactError
from edge_train.graph import ir
from edge_train.graph.onnx_reader import read_attribute, read_node
from edge_train.graph.onnx_schema import AttributeUse, FunctionCall, FunctionProto

#: domain, op type, overload
Key = tuple[str, str, str]


@dataclass(frozen=True)
class Function:
    """A subroutine of nodes. ``defaults``: attributes that a call may leave out, with values."""

    key: Key
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    defaults: dict[str, ir.Attribute]
    nodes: tuple[ir.Node, ...]
    opset_imports: tuple[tuple[str, int], ...]


def decode_function(data: bytes) -> Function:
    """The function in the bytes of a FunctionProto; ArtifactError."""
    message = FunctionProto()
    try:
        message.ParseFromString(data)
        texts = [getattr(message, field).decode() for field in ("domain", "name", "overload")]
        attributes = [read_attribute(item, {}) for item in message.attribute_proto]
        return Function(
            (_domain(texts[0]), texts[1], texts[2]),
            tuple([name.decode() for name in message.input]),
            tuple([name.decode() for name in message.output]),
            {attribute.name: attribute for attribute in attributes},
            tuple([read_node(item, {}) for item in message.node]),
            tuple([(item.domain.decode(), item.version) for item in message.opset_import]),
        )
    except (DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ArtifactError(f"a model-local function of the model is damaged ({error})") from error


def _domain(name: str) -> str:
    return "" if name in ir.ONNX_DOMAINS else name


def called_key(node: ir.Node) -> Key:
    """The key of the function that a node calls, if it calls one."""
    overload = ""
    if node.extra:
        message = FunctionCall()
        message.ParseFromString(node.extra)
        overload = message.overload.decode()
    return _domain(node.domain), node.op_type, overload


def referred_attribute(attribute: ir.Attribute) -> str:
    """The attribute of the function that this attribute of a body node stands for; "" if none."""
    if not attribute.extra:
        return ""
    message = AttributeUse()
    message.ParseFromString(attribute.extra)
    name: str = message.ref_attr_name.decode()
    return name
