"""Elementary blocks: each adds a node (or an input, or an initializer) to the base model.

A block takes tensor names and returns the name of what it made. Subclass ``Block`` and write
``build`` for a block of your own; inside it other blocks can be called.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from edge_train.onnxblock import graphs, model_accessor


class Block(ABC):
    """Something that extends the model of the enclosing ``onnxblock.base``.

    ``base`` is that model while ``build`` runs.
    """

    # set by every call; a subclass need not call __init__
    base: Any = None

    def __init__(self, temp_file_name: str = "temp.onnx") -> None:  # noqa: B027
        """``temp_file_name`` is the reference's; no file is needed here."""

    @abstractmethod
    def build(self, *args: Any, **kwargs: Any) -> Any:
        """Extends ``self.base`` and returns the name, or names, of what it made."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs ``build`` on the base model; RuntimeError outside of ``onnxblock.base``."""
        accessor = model_accessor.current()
        self.base = accessor.model
        output = self.build(*args, **kwargs)
        accessor.check_names()
        return output

    def infer_shapes_on_base(self) -> onnx.ModelProto:
        """A copy of the base model that declares what can be inferred of its inner tensors.

        RuntimeError outside of ``onnxblock.base``.
        """
        return graphs.with_inferred_types(model_accessor.current().model)

    def _add_node(
        self,
        op_type: str,
        inputs: Sequence[str],
        stem: str | None = None,
        domain: str | None = None,
        **attributes: Any,
    ) -> str:
        output = graphs.generate_graph_name(stem or f"{op_type.lower()}_output")
        name = graphs.generate_graph_name(op_type)
        node = helper.make_node(
            op_type, list(inputs), [output], name=name, domain=domain, **attributes
        )
        self.base.graph.node.append(node)
        return output

    def _add_initializer(self, stem: str, values: Any, elem_type: int = TensorProto.FLOAT) -> str:
        name = graphs.generate_graph_name(stem)
        self.base.graph.initializer.append(graphs.constant(name, values, elem_type))
        return name


class _UnaryOp(Block):
    def __init__(self, op_name: str, **attributes: Any) -> None:
        super().__init__()
        self._op_name = op_name
        self._attributes = attributes

    def build(self, input_name: str) -> str:
        return self._add_node(self._op_name, [input_name], **self._attributes)


class _BinaryOp(Block):
    def __init__(self, op_name: str) -> None:
        super().__init__()
        self._op_name = op_name

    def build(self, input_name1: str, input_name2: str) -> str:
        return self._add_node(self._op_name, [input_name1, input_name2])


class Add(_BinaryOp):
    """a + b."""

    def __init__(self) -> None:
        super().__init__("Add")


class Sub(_BinaryOp):
    """a - b."""

    def __init__(self) -> None:
        super().__init__("Sub")


class Mul(_BinaryOp):
    """a * b."""

    def __init__(self) -> None:
        super().__init__("Mul")


class Div(_BinaryOp):
    """a / b."""

    def __init__(self) -> None:
        super().__init__("Div")


class Pow(Block):
    """x to a constant exponent."""

    def __init__(self, exponent: float) -> None:
        super().__init__()
        self._exponent = exponent

    def build(self, pow_input_name: str) -> str:
        kind = graphs.float_type_of(self.base, pow_input_name)
        exponent = self._add_initializer("pow_exponent", [self._exponent], kind)
        return self._add_node("Pow", [pow_input_name, exponent])


class ReduceMean(_UnaryOp):
    """The mean over all axes."""

    def __init__(self, keepdims: bool = True) -> None:
        super().__init__("ReduceMean", keepdims=int(keepdims))


class ReduceSum(_UnaryOp):
    """The sum over all axes."""

    def __init__(self, keepdims: bool = True) -> None:
        super().__init__("ReduceSum", keepdims=int(keepdims))


class Sigmoid(_UnaryOp):
    """1 / (1 + exp(-x))."""

    def __init__(self) -> None:
        super().__init__("Sigmoid")


class Log(_UnaryOp):
    """The natural logarithm."""

    def __init__(self) -> None:
        super().__init__("Log")


class Neg(_UnaryOp):
    """-x."""

    def __init__(self) -> None:
        super().__init__("Neg")


class Abs(_UnaryOp):
    """The absolute value."""

    def __init__(self) -> None:
        super().__init__("Abs")


class Constant(Block):
    """A float32 constant of shape [1]."""

    def __init__(self, value_float: float) -> None:
        super().__init__()
        self._value = value_float

    def build(self) -> str:
        return self._add_initializer("initializer", [self._value])


class SequenceConstruct(Block):
    """A sequence of the given tensors."""

    def build(self, *sequence_input_names: str) -> str:
        return self._add_node("SequenceConstruct", sequence_input_names)


class ReduceAllL2(Block):
    """The L2 norm of all the given tensors together (com.microsoft), shape [1]."""

    def build(self, *reduce_node_input_names: str) -> str:
        norm = self._add_node("ReduceAllL2", reduce_node_input_names, domain="com.microsoft")
        self.base.graph.value_info.append(graphs.value_info(norm, TensorProto.FLOAT, (1,)))
        return norm


class Clip(Block):
    """x kept within [clip_min, clip_max]; None leaves a side open."""

    def __init__(self, clip_min: float | None = None, clip_max: float | None = None) -> None:
        super().__init__()
        self._bounds = (("clip_min", clip_min), ("clip_max", clip_max))

    def build(self, clip_input_name: str) -> str:
        kind = graphs.type_of(self.base, clip_input_name)[0] or TensorProto.FLOAT
        # rank 0: what the operator asks for
        bounds = [
            ""
            if value is None
            else self._add_initializer(stem, graphs.bound(value, kind, stem == "clip_min"), kind)
            for stem, value in self._bounds
        ]
        return self._add_node("Clip", [clip_input_name, *bounds])


class PassThrough(Block):
    """The given names, nothing added."""

    def build(self, *input_names: str) -> tuple[str, ...]:
        return input_names


class InputLike(Block):
    """A new graph input with type and shape of another tensor (an input, an output or inner)."""

    def __init__(self, like: str) -> None:
        super().__init__()
        self._like = like

    def build(self, input_name: str | None = None) -> str:
        graph = self.base.graph
        name = input_name or graphs.generate_graph_name("input")
        for value in (*graph.input, *graph.output):
            if value.name == self._like and value.type.tensor_type.HasField("shape"):
                like = copy.deepcopy(value)
                like.name = name
                graphs.forget_repeated_symbols(like)
                graph.input.append(like)
                return name
        elem_type, dims = graphs.type_of(self.base, self._like)
        if elem_type is None:
            raise LookupError(f"no tensor of a known type is called '{self._like}'")
        graph.input.append(graphs.value_info(name, elem_type, dims))
        return name


_LABEL_TYPES = {
    "values_int64s": TensorProto.INT64,
    "values_strings": TensorProto.STRING,
    "values_floats": TensorProto.FLOAT,
}


class LabelEncoder(Block):
    """Maps keys to values (ai.onnx.ml); give one list of keys and one of values."""

    def __init__(
        self,
        default_float: float = 0.0,
        default_int64: int = -1,
        default_string: str = "_Unused",
        keys_floats: list[float] | None = None,
        keys_int64s: list[int] | None = None,
        keys_strings: list[str] | None = None,
        values_floats: list[float] | None = None,
        values_int64s: list[int] | None = None,
        values_strings: list[str] | None = None,
    ) -> None:
        super().__init__()
        given = {
            "default_float": default_float,
            "default_int64": default_int64,
            "default_string": default_string,
            "keys_floats": keys_floats,
            "keys_int64s": keys_int64s,
            "keys_strings": keys_strings,
            "values_floats": values_floats,
            "values_int64s": values_int64s,
            "values_strings": values_strings,
        }
        self._attributes = {key: value for key, value in given.items() if value is not None}

    def build(self, label_encoder_input_name: str) -> str:
        imported = [item.domain for item in self.base.opset_import]
        if "ai.onnx.ml" not in imported:
            self.base.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
        labels = self._add_node(
            "LabelEncoder",
            [label_encoder_input_name],
            "label_encoder.output",
            domain="ai.onnx.ml",
            **self._attributes,
        )
        kinds = (key for key in _LABEL_TYPES if key in self._attributes)
        _, dims = graphs.type_of(self.base, label_encoder_input_name)
        info = graphs.value_info(labels, _LABEL_TYPES[next(kinds, "values_floats")], dims)
        self.base.graph.value_info.append(info)
        return labels


class Cast(Block):
    """x in another element type (an onnx.TensorProto.DataType)."""

    def __init__(self, to: onnx.TensorProto.DataType) -> None:
        super().__init__()
        self._to = to

    def build(self, cast_input_name: str) -> str:
        return self._add_node("Cast", [cast_input_name], "cast.output", to=self._to)


class Linear(Block):
    """A new trainable layer: alpha * x W + beta * b with W (in_features, out_features).

    The weights are drawn from a standard normal distribution.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        alpha: float = 1.0,
        beta: float = 1.0,
    ) -> None:
        super().__init__()
        self._shape = (in_features, out_features)
        self._bias = bias
        self._factors: dict[str, Any] = {"alpha": float(alpha), "beta": float(beta)}

    def build(self, linear_input_name: str) -> str:
        weights = [self._add_initializer("linear.weight", np.random.randn(*self._shape))]
        if self._bias:
            weights.append(self._add_initializer("linear.bias", np.random.randn(self._shape[1])))
        model_accessor.current().weights.extend(weights)
        inputs = [linear_input_name, *weights]
        return self._add_node("Gemm", inputs, "linear.output", **self._factors)
