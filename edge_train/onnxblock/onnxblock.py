"""Blocks that finish a model: ForwardBlock names its outputs, TrainingBlock differentiates it."""

from __future__ import annotations

import copy
from abc import abstractmethod
from typing import Any

import onnx

from edge_train import dtypes
from edge_train.errors import ArtifactError
from edge_train.graph import ir, onnx_codec
from edge_train.graph.masters import as_float32
from edge_train.graph.parameters import Choice
from edge_train.graph.training import Built, build
from edge_train.onnxblock import graphs, model_accessor
from edge_train.onnxblock.blocks import Block


class ForwardBlock(Block):
    """A block whose results become the outputs of the model."""

    _model: onnx.ModelProto | None = None

    @abstractmethod
    def build(self, *args: Any, **kwargs: Any) -> Any:
        """Extends ``self.base`` and returns the name, or names, of the graph outputs."""

    def to_model_proto(self) -> onnx.ModelProto:
        """The finished model, with the types of its inner tensors where they can be inferred.

        What other blocks add to the base model later is not in it. RuntimeError before the block
        was called.
        """
        if self._model is None:
            raise RuntimeError("the forward model is not built yet: call the block first")
        return self._model

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Builds the model inside ``onnxblock.base`` or ``empty_base``."""
        output = super().__call__(*args, **kwargs)
        graphs.register_graph_outputs(self.base, output)
        graphs.declare_inferred(self.base)
        self._model = copy.deepcopy(self.base)
        return output


class TrainingBlock(Block):
    """A block whose result, the loss, is differentiated.

    ``requires_grad(name)`` says what is trained, ``requires_grad(name, False)`` what is frozen.
    Other float weights of the model are frozen parameters too, so that they reach the checkpoint.
    """

    def __init__(self) -> None:
        super().__init__()
        self._choice: dict[str, bool] = {}
        self._built: Built | None = None

    @abstractmethod
    def build(self, *args: Any, **kwargs: Any) -> Any:
        """Extends ``self.base`` and returns the loss, or the loss and additional outputs."""

    def requires_grad(self, argument_name: str, value: bool = True) -> None:
        """Trains a parameter, or freezes it; glob patterns match the weights of the model."""
        self._choice[argument_name] = bool(value)

    def parameters(self) -> tuple[list[onnx.TensorProto], list[onnx.TensorProto]]:
        """The trained and the frozen parameters, in the model's order of initializers.

        RuntimeError before the block was called.
        """
        built = self._finished()
        trainable = [_proto(_float32(tensor)) for tensor in built.trainable]
        return trainable, [_proto(tensor) for tensor in built.frozen]

    def to_model_proto(self) -> tuple[onnx.ModelProto, onnx.ModelProto]:
        """The training model and the eval model; RuntimeError before the block was called."""
        built = self._finished()
        return graphs.from_ir(built.training), graphs.from_ir(built.eval)

    def _finished(self) -> Built:
        if self._built is None:
            raise RuntimeError("the training model is not built yet: call the block first")
        return self._built

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Builds loss and gradients inside ``onnxblock.base``.

        Errors: ArtifactError listing everything that keeps the model from being trained,
        UnsupportedOp where that is nodes without gradient alone.
        """
        own = graphs.weight_names(model_accessor.current().model)
        output = super().__call__(*args, **kwargs)
        names = [output] if isinstance(output, str) else list(output)
        choice = Choice(
            train=tuple(name for name, value in self._choice.items() if value),
            freeze=tuple(name for name, value in self._choice.items() if not value),
            weights=own.union(model_accessor.current().weights),
        )
        self._built = build(graphs.to_ir(self.base), names, choice)
        self.base.CopyFrom(graphs.from_ir(self._built.training))
        return output


def _float32(tensor: ir.Tensor) -> ir.Tensor:
    if tensor.raw is None and tensor.data_type != dtypes.FLOAT:
        raise ArtifactError(
            f"parameter '{tensor.name}' is {dtypes.name_of(tensor.data_type)} in an external file: "
            "load the model with its data, or use generate_artifacts"
        )
    return as_float32(tensor)


def _proto(tensor: ir.Tensor) -> onnx.TensorProto:
    message = onnx.TensorProto()
    message.ParseFromString(onnx_codec.encode_tensor(tensor))
    return message
