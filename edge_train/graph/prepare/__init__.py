"""Host side: makes a forward graph fit for differentiation. Each pass takes and gives an ir.Model.

The order matters: opset first, so that every later pass and every gradient rule knows one opset.
"""

from __future__ import annotations

from collections.abc import Callable

from edge_train.graph import ir
from edge_train.graph.opset import raise_opset
from edge_train.graph.prepare.names import name_nodes
from edge_train.graph.prepare.training_mode import enter_training_mode

PASSES: tuple[Callable[[ir.Model], ir.Model], ...] = (
    raise_opset,
    name_nodes,
    enter_training_mode,
)


def prepare(model: ir.Model) -> ir.Model:
    """The model at opset 21 with named nodes, in training mode."""
    for step in PASSES:
        model = step(model)
    return model
