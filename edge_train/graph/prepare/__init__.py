"""Host side: makes what users export fit for training. Each pass takes and gives an ir.Model.

``tidy`` comes first: after it every weight is an initializer, and the graph is flat. The eval graph
is built on that. ``prepare`` goes on to the graph that is differentiated; the opset first, so that
every later pass and every gradient rule knows one opset.
"""

from __future__ import annotations

from collections.abc import Collection

from edge_train.graph import ir
from edge_train.graph.opset import TARGET, raise_opset
from edge_train.graph.prepare.branches import fold_branches
from edge_train.graph.prepare.cleanup import clean
from edge_train.graph.prepare.declared import mend_declared
from edge_train.graph.prepare.faults import explained
from edge_train.graph.prepare.folding import fold_constants
from edge_train.graph.prepare.functions import inline_functions
from edge_train.graph.prepare.fusions import fuse
from edge_train.graph.prepare.names import name_nodes
from edge_train.graph.prepare.sparse import densified
from edge_train.graph.prepare.training_mode import enter_training_mode
from edge_train.graph.prepare.unfusing import unfuse
from edge_train.graph.prepare.weights import constants_as_initializers, own_weights

__all__ = ["prepare", "tidy", "with_weights"]

#: the first opset with SoftmaxCrossEntropyLoss
OLDEST_WITH_LOSSES = 12


def tidy(model: ir.Model, names: Collection[str] = ()) -> ir.Model:
    """The model without functions, sparse tensors, constant nodes and Ifs whose branch is known.

    ``names``: parameters asked for; those that are copies of another become weights of their own.
    Opsets below 12 and above 21 become 21. External data stays where it is. ArtifactError for a
    model that breaks the ONNX rules.
    """
    with explained(model):
        model = mend_declared(fold_branches(_plain(model), names))
        model = own_weights(constants_as_initializers(model, names), names)
        version = model.opset() or TARGET
        return model if OLDEST_WITH_LOSSES <= version <= TARGET else raise_opset(model)


def with_weights(model: ir.Model, names: Collection[str] = ()) -> ir.Model:
    """The model with every weight among its initializers, as ``tidy`` finds them, opset and
    branches left as they are."""
    return own_weights(constants_as_initializers(_plain(model), names), names)


def _plain(model: ir.Model) -> ir.Model:
    """The model without functions, and without the sparse tensors that these may hold too."""
    return densified(inline_functions(densified(model)))


def prepare(model: ir.Model, keep: Collection[str] | None = None) -> ir.Model:
    """The model at opset 21 with named nodes, in training mode.

    ``keep``: the outputs and parameters, given which the graph is also simplified (constants
    computed, no-ops and duplicates removed, known formulas fused); None leaves every tensor.
    ArtifactError for a model that breaks the ONNX rules.
    """
    with explained(model):
        return _prepared(model, keep)


def _prepared(model: ir.Model, keep: Collection[str] | None) -> ir.Model:
    model = raise_opset(fold_branches(_plain(model), keep or ()))
    model = constants_as_initializers(unfuse(model))
    model = enter_training_mode(name_nodes(model))
    if keep is not None:
        model = clean(fold_constants(model, keep), keep)
        model = fuse(model, keep)
    return model
