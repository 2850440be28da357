"""Frozen weights as constants of the training graph, so that onnxruntime lays them out for itself.

A weight that is fed can change between two runs: onnxruntime packs it again in each. As a constant
it is packed once, and convolutions run on blocked channels. That is done for what a choice of
``trainable`` froze, where a product or a convolution reads it and all of it is small enough to be
there twice. Whoever changes such a weight does it through its Parameter, which counts: the session
is then made anew. Views taken before are detached, else they would change evaluation only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from edge_train import dtypes
from edge_train.checkpoint.parameter import Parameter
from edge_train.checkpoint.state import CheckpointState
from edge_train.graph import ir
from edge_train.graph.lowering import Lowered
from edge_train.graph.passes import outer_reads
from edge_train.graph.roles import Roles

#: bytes of constants that are worth their second copy
MOST = 1 << 24

#: op -> inputs that onnxruntime packs where they are constants
_PACKED = {
    "Conv": (1, 2),
    "ConvTranspose": (1, 2),
    "FusedMatMul": (1,),
    "Gemm": (1, 2),
    "MatMul": (1,),
}


@dataclass
class FrozenConstants:
    """The parameters that are constants of a graph, as they were when it was made."""

    parameters: dict[str, Parameter]
    versions: dict[str, int]

    @staticmethod
    def of(model: ir.Model, roles: Roles, state: CheckpointState) -> FrozenConstants | None:
        """What of the frozen weights is worth it; None for nothing."""
        if state.is_nominal or state.memory.name != "cpu":
            return None  # no values yet, or others may change them
        names = [name for name in _packed(model.graph, roles) if name in state.parameters]
        found = {name: state.parameters[name] for name in dict.fromkeys(names)}
        size = sum(parameter.data.nbytes for parameter in found.values())
        if not found or size > MOST:
            return None
        return FrozenConstants(found, {name: p.version for name, p in found.items()})

    def hold(self) -> bool:
        """From now on these parameters are written through their Parameter only; whether any of
        them moved for that."""
        return any([parameter.hold() for parameter in self.parameters.values()])

    def changed(self) -> bool:
        """Whether a parameter was written since the graph was made."""
        for name, version in self.versions.items():
            if self.parameters[name].version != version:
                return True
        return False

    def into(self, model: ir.Model) -> ir.Model:
        """The model with the present values as initializers in place of inputs."""
        self.versions = {name: p.version for name, p in self.parameters.items()}
        graph = model.graph
        tensors = {name: ir.Tensor.of(name, p.data) for name, p in self.parameters.items()}
        inputs = [value for value in graph.inputs if value.name not in tensors]
        constants = {**graph.initializers, **tensors}
        return replace(model, graph=replace(graph, inputs=inputs, initializers=constants))

    def out_of(self, lowered: Lowered) -> Lowered:
        """The lowered graph without the values, which the session has by now."""
        graph = lowered.model.graph
        kept = {n: t for n, t in graph.initializers.items() if n not in self.parameters}
        model = replace(lowered.model, graph=replace(graph, initializers=kept))
        return replace(lowered, model=model)


def _packed(graph: ir.Graph, roles: Roles) -> Iterator[str]:
    """The frozen float32 parameters that onnxruntime would lay out for itself.

    Not those of convolutions that a gradient passes: its kernel takes the weight as it is, and the
    blocks of channels would go to and fro around it.
    """
    frozen = {
        value.name
        for value in roles.parameters
        if value.name not in roles.trainable and value.elem_type == dtypes.FLOAT
    }
    elsewhere: set[str] = set()
    for node in graph.nodes:
        places = _PACKED.get(node.op_type, ())
        elsewhere |= outer_reads(node) - {node.input(index) for index in places}
    for node in graph.nodes:
        for index in _PACKED.get(node.op_type, ()):
            if node.input(index) in frozen - elsewhere:
                yield node.input(index)
