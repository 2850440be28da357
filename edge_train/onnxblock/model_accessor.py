"""The model that blocks write to: one at a time, set by the context managers."""

from __future__ import annotations

import copy
import itertools
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import onnx


class ModelAccessor:
    """The model under construction, its path if it has one, and the counter of new names."""

    def __init__(self, model: onnx.ModelProto, model_path: str | None = None) -> None:
        self.model = model
        self._path = model_path
        #: initializers that blocks added as weights to be trained
        self.weights: list[str] = []
        self._taken = _names(model.graph)
        self._count = 0

    @property
    def path(self) -> str:
        """The file that the model came from; RuntimeError where ``base`` was given none."""
        if self._path is None:
            raise RuntimeError("the base model has no path: give base(model, model_path) one")
        return self._path

    @property
    def has_path(self) -> bool:
        """Whether the model came from a file."""
        return self._path is not None

    def fresh(self, token: str) -> str:
        """``onnx::<token>::<n>``, a name that the model does not have."""
        while True:
            self._count += 1
            name = f"onnx::{token}::{self._count}"
            if name not in self._taken and name not in _made_outside:
                return name

    def check_names(self) -> None:
        """RuntimeError where a name made outside of a base is that of two tensors in this one."""
        if not _made_outside:
            return
        tensors = [tensor.name for tensor in self.model.graph.initializer]
        tensors += [name for node in self.model.graph.node for name in node.output]
        twice = [n for n, count in Counter(tensors).items() if count > 1 and n in _made_outside]
        if twice:
            raise RuntimeError(
                f"the base model has a tensor '{twice[0]}' already: generate_graph_name, called "
                "outside of a base, cannot know its names; call it inside of 'build'"
            )


def _names(graph: onnx.GraphProto) -> set[str]:
    names = {value.name for value in (*graph.input, *graph.initializer)}
    for node in graph.node:
        names.update((node.name, *node.output))
    return names


def fresh(token: str) -> str:
    """A name for the base model, or, outside of a base, one that no other call gives."""
    if _current is not None:
        return _current.fresh(token)
    name = f"onnx::{token}::{next(_outside_count)}"
    _made_outside.add(name)
    return name


_outside_count = itertools.count(1)
_made_outside: set[str] = set()
_current: ModelAccessor | None = None
_custom_op_library: os.PathLike[str] | str | None = None


def current() -> ModelAccessor:
    """The accessor of the enclosing ``base`` or ``empty_base``; RuntimeError outside of both."""
    if _current is None:
        raise RuntimeError(
            "no base model: call blocks inside 'with onnxblock.base(model):' or "
            "'with onnxblock.empty_base():'"
        )
    return _current


@contextmanager
def _registered(accessor: ModelAccessor) -> Iterator[ModelAccessor]:
    global _current
    if _current is not None:
        raise RuntimeError("a base model is being built already: leave its 'with' block first")
    _current = accessor
    try:
        yield accessor
    finally:
        _current = None


@contextmanager
def base(model: onnx.ModelProto, model_path: str | None = None) -> Iterator[ModelAccessor]:
    """Blocks called inside work on a copy of ``model``, which the handle's ``model`` gives.

    RuntimeError without a model or inside another base.
    """
    if model is None:
        raise RuntimeError("base needs a model; onnxblock.empty_base() starts from nothing")
    with _registered(ModelAccessor(copy.deepcopy(model), model_path)) as accessor:
        yield accessor


@contextmanager
def borrowed(model: onnx.ModelProto) -> Iterator[ModelAccessor]:
    """As ``base`` without the copy: the blocks change ``model`` itself."""
    with _registered(ModelAccessor(model)) as accessor:
        yield accessor


@contextmanager
def empty_base(opset_version: int | None = None) -> Iterator[ModelAccessor]:
    """Blocks called inside build a new model, at opset 21 (an older ``onnx``: its newest) unless
    told.
    """
    model = onnx.ModelProto(ir_version=EMPTY_IR_VERSION, producer_name="orttraining")
    model.graph.name = "graph"
    version = opset_version or min(onnx.defs.onnx_opset_version(), EMPTY_OPSET)
    for domain, number in (("com.microsoft", 1), ("", version)):
        model.opset_import.append(onnx.helper.make_opsetid(domain, number))
    with _registered(ModelAccessor(model)) as accessor:
        yield accessor


#: what onnxruntime-training 1.19.2 writes; a newer IR is not read by it
EMPTY_IR_VERSION = 10
#: what gradients are written in; onnx knows newer ones than the runtimes do
EMPTY_OPSET = 21


@contextmanager
def custom_op_library(
    custom_op_library_path: str | os.PathLike[str],
) -> Iterator[str | os.PathLike[str]]:
    """Names the library of the model's custom ops; nodes of foreign domains are kept as they are.

    RuntimeError for a missing file or inside another one.
    """
    global _custom_op_library
    if _custom_op_library is not None:
        raise RuntimeError("a custom op library is set already: leave its 'with' block first")
    if not os.path.exists(custom_op_library_path):
        raise RuntimeError(f"custom op library '{custom_op_library_path}' does not exist")
    _custom_op_library = custom_op_library_path
    try:
        yield custom_op_library_path
    finally:
        _custom_op_library = None
