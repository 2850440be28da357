"""Everything that a training session keeps, as copies, to show that a call left it alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edge_train.checkpoint.state import CheckpointState

Snapshot = dict[str, NDArray]


def snapshot(state: CheckpointState) -> Snapshot:
    """Weights (statistics among them), accumulated gradients, moments and step counters."""
    kept: Snapshot = {}
    for name, parameter in state.parameters:
        kept[f"data {name}"] = parameter.data.copy()
        if parameter.grad is not None:
            kept[f"grad {name}"] = parameter.grad.copy()
    for group in state.groups.values():
        kept[f"step {group.name}"] = np.array(group.step)
        for name, own in group.moments.items():
            kept.update({f"{kind} {name}": moment.copy() for kind, moment in own.items()})
    return kept


def differences(one: Snapshot, other: Snapshot) -> list[str]:
    """The names of what differs, bit by bit (a NaN is itself)."""
    assert one.keys() == other.keys(), one.keys() ^ other.keys()
    return [name for name in one if one[name].tobytes() != other[name].tobytes()]
