"""Running artifacts with edge_train in tests: set the weights, step, compare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from support.zoo import Artifacts, Case

from edge_train.api import CheckpointState, Module, Optimizer
from edge_train.graph import ir, onnx_codec

Arrays = Mapping[str, NDArray]

#: the parity measure: loss relative, gradient relative to its norm, floor for gradients that are
#: analytically zero (what float32 rounding leaves of them)
LOSS = 2e-6
GRADIENT = 1e-5
GRADIENT_FLOOR = 2e-7


def module_of(artifacts: Artifacts, **options: object) -> Module:
    """A Module with training and eval graph on the artifacts' own checkpoint."""
    state = CheckpointState.load_checkpoint(artifacts.checkpoint)
    return Module(artifacts.training_model, state, artifacts.eval_model, **options)


def session_of(artifacts: Artifacts, **options: object) -> tuple[Module, Optimizer]:
    """Module and Optimizer of the artifacts."""
    module = module_of(artifacts, **options)
    return module, Optimizer(artifacts.optimizer_model, module)


def set_parameters(module: Module, values: Arrays) -> None:
    """Writes the named values into the module's parameters."""
    for name, value in values.items():
        module.state.parameters[name].data[...] = value


def gradient_errors(module: Module, expected: Arrays) -> dict[str, float]:
    """Per parameter: the distance to the expected gradient over its norm (or the floor's)."""
    errors = {}
    for name, wanted in expected.items():
        got = module.state.parameters[name].grad
        assert got is not None, name
        scale = max(float(np.linalg.norm(wanted)), GRADIENT_FLOOR / GRADIENT)
        errors[name] = float(np.linalg.norm(got.astype(np.float64) - wanted)) / scale
    return errors


def golden_step(case: Case, module: Module, step: int) -> tuple[float, dict[str, float]]:
    """One training step from the reference's own weights: the relative error of the loss, and the
    errors of the gradients."""
    set_parameters(module, case.params(step))
    module.train()
    module.lazy_reset_grad()
    loss = float(module(**case.feed))
    wanted = float(case.losses[step])
    return abs(loss - wanted) / max(abs(wanted), 1e-12), gradient_errors(module, case.grads(step))


def with_computed_labels(source: onnx_codec.Source) -> bytes:
    """The graph with its loss on labels + 0, which no check before the run can look through."""
    model = onnx_codec.load(source)
    zero = {"zero": ir.Tensor.of("zero", np.zeros((), np.int64))}
    nodes = [ir.make_node("Add", ["labels", "zero"], ["shifted"], "shift")]
    for node in model.graph.nodes:
        inputs = tuple("shifted" if name == "labels" else name for name in node.inputs)
        nodes.append(replace(node, inputs=inputs))
    initializers = {**model.graph.initializers, **zero}
    graph = replace(model.graph, nodes=nodes, initializers=initializers)
    return onnx_codec.encode(replace(model, graph=graph))
