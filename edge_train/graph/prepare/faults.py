"""Tells a malformed model from a fault of our own: onnx's checker has the say."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from edge_train.errors import ArtifactError
from edge_train.graph import ir, onnx_codec

_BY_MALFORMED_NODES = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


@contextmanager
def explained(model: ir.Model) -> Iterator[None]:
    """What fails inside because a node of ``model`` breaks the ONNX rules is an ArtifactError that
    names the node. Any other exception stays what it is, where onnx is there to tell them apart."""
    try:
        yield
    except ArtifactError:
        raise
    except _BY_MALFORMED_NODES as error:
        try:
            fault = _fault(model)
        except ImportError:  # a device, which converts without onnx
            fault = repr(error)
        if fault is None:
            raise
        raise ArtifactError(f"the model '{model.graph.name}' is malformed: {fault}") from error


def _fault(model: ir.Model) -> str | None:
    """The first node that the checker refuses and why; None if it accepts all of them."""
    import onnx

    context = onnx.checker.C.CheckerContext()
    context.ir_version = model.ir_version
    context.opset_imports = {name: version for name, version in model.opset_imports}
    for node in model.graph.nodes:
        try:
            alone = replace(model, graph=ir.Graph("node", [node]), functions=())
            message = onnx.ModelProto.FromString(onnx_codec.encode(alone)).graph.node[0]
            onnx.checker.check_node(message, context)
        except (onnx.checker.ValidationError, *_BY_MALFORMED_NODES) as error:
            lines = str(error).strip().splitlines()
            return f"{node.describe()}: {lines[0] if lines else error!r}"
    return None
