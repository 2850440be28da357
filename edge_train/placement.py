"""Where parameters live: checked against a graph, moved into the Arena, and as one flat buffer.

The flat buffer of get_contiguous_parameters and copy_buffer_to_parameters holds the float32
parameters in training-model input order, each row-major.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from edge_train import dtypes
from edge_train.arena import Arena
from edge_train.arena_memory import Entry
from edge_train.checkpoint.state import CheckpointState
from edge_train.errors import ArtifactError
from edge_train.graph import ir
from edge_train.graph.roles import Roles


@dataclass(frozen=True)
class ParameterSlot:
    """One parameter in the flat buffer: ``offset`` counts elements from the buffer's start."""

    name: str
    shape: tuple[int, ...]
    offset: int
    trainable: bool

    @property
    def size(self) -> int:
        """The number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))


def check_parameters(what: str, roles: Roles, state: CheckpointState) -> None:
    """ArtifactError listing every way in which a graph and a checkpoint do not fit together."""
    problems = [f"missing from the checkpoint: '{name}'" for name in roles.unknown]
    asked = {value.name for value in roles.parameters}
    for name, parameter in state.parameters:
        if parameter.has_gradient and roles.trainable and name not in roles.trainable:
            reason = "no gradient for it" if name in asked else "no such input"
            problems.append(f"'{name}' is trainable in the checkpoint, the graph has {reason}")
    for name in roles.trainable:
        if name in state.parameters and not state.parameters[name].has_gradient:
            problems.append(f"'{name}' is frozen in the checkpoint, the graph trains it")
    if not state.is_nominal:
        problems += [_misfit(value, state) for value in roles.parameters]
    if not roles.parameters and len(state.parameters):
        problems.append("none of the checkpoint's parameters is an input of the graph")
    problems = [problem for problem in problems if problem]
    if problems:
        listed = "\n  ".join(problems)
        raise ArtifactError(
            f"the checkpoint does not belong to the {what} ({len(problems)} mismatches):\n  "
            f"{listed}\nUse the checkpoint that was generated or saved with this graph."
        )


def check_trainable_types(roles: Roles) -> None:
    """ArtifactError listing the trainable parameters that are no float32 tensors."""
    others = [
        f"'{value.name}' is {dtypes.name_of(value.elem_type)}"
        for value in roles.parameters
        if value.name in roles.trainable and value.elem_type not in (None, dtypes.FLOAT)
    ]
    if others:
        raise ArtifactError(
            f"trainable parameters must be float32: {', '.join(others)}. Keep them in float32 and "
            "cast them inside the model, or freeze them"
        )


def _misfit(value: ir.Value, state: CheckpointState) -> str:
    if value.name not in state.parameters or value.dims is None:
        return ""
    data = state.parameters[value.name].data
    fits = len(data.shape) == len(value.dims) and all(
        size == dim or not isinstance(dim, int)
        for size, dim in zip(data.shape, value.dims, strict=False)
    )
    if not fits:
        return f"'{value.name}': the graph wants shape {value.dims}, got {data.shape}"
    if value.elem_type is not None and dtypes.number_of(data.dtype) != value.elem_type:
        wanted = dtypes.name_of(value.elem_type)
        return f"'{value.name}': the graph wants {wanted}, the checkpoint has {data.dtype}"
    return ""


def layout_of(roles: Roles, state: CheckpointState) -> tuple[ParameterSlot, ...]:
    """The flat buffer's layout: parameters in the order of the training graph's inputs.

    Errors: ArtifactError when a parameter is no float32 tensor or its sizes are not known.
    """
    slots: list[ParameterSlot] = []
    offset = 0
    for value in roles.parameters:
        shape = _shape(value, state)
        slots.append(ParameterSlot(value.name, shape, offset, value.name in roles.trainable))
        offset += slots[-1].size
    return tuple(slots)


def _shape(value: ir.Value, state: CheckpointState) -> tuple[int, ...]:
    if not state.is_nominal:
        return tuple(state.parameters[value.name].data.shape)
    dims = value.dims
    if dims is None or not all(isinstance(dim, int) for dim in dims):
        raise ArtifactError(
            f"parameter '{value.name}' of a nominal checkpoint has no fixed sizes in the training "
            f"graph (it says {dims}); use the full checkpoint"
        )
    return tuple(int(dim) for dim in dims if dim is not None)


def place(roles: Roles, layout: Sequence[ParameterSlot], state: CheckpointState) -> Arena:
    """Moves the trainable parameters into one Arena; a state that has one shares it. Not for a
    nominal state: ``make_room``.

    Errors: ArtifactError for a trainable parameter that is not float32, and where the state's
    Arena is that of a Module with another choice of trainable parameters.
    """
    trainable = [slot for slot in layout if slot.trainable]
    if state.arena is not None:
        _check_same(state.arena, trainable)
        return state.arena
    check_trainable_types(roles)
    state.memory.prepare(_entries(layout, state))
    arena = Arena([(slot.name, slot.shape) for slot in trainable], state.memory)
    with arena.memory.writing():
        for slot in trainable:
            parameter = state.parameters[slot.name]
            home = arena.view(arena.weights, slot.name)
            home[...] = parameter.data
            parameter.attach(home, arena.view(arena.gradients, slot.name))
        _move_frozen(state, arena)
    state.arena = arena
    arena.memory.publish()
    return arena


def _entries(layout: Sequence[ParameterSlot], state: CheckpointState) -> list[Entry]:
    """What wants a place: the trainable ones in their order, the others, those in no graph."""
    single = np.dtype(np.float32)
    entries = [Entry(slot.name, single, slot.shape, slot.trainable, slot.offset) for slot in layout]
    if not state.is_nominal:
        known = {entry.name: entry for entry in entries}
        for name, parameter in state.parameters:
            data = parameter.data
            if name in known and known[name].dtype == data.dtype:
                continue
            known[name] = Entry(name, data.dtype, tuple(data.shape), False)
        entries = list(known.values())
    numbers = [entry for entry in entries if not entry.dtype.hasobject]
    return sorted(numbers, key=lambda entry: not entry.trainable)


def _move_frozen(state: CheckpointState, arena: Arena) -> None:
    for name, parameter in state.parameters:
        home = None if name in arena else arena.memory.frozen(name)
        if home is not None:
            home[...] = parameter.data
            parameter.attach(home, None)


def _check_same(arena: Arena, trainable: Sequence[ParameterSlot]) -> None:
    """Their order may be another: it is that of the Module that made the Arena."""
    own, there = {slot.name for slot in trainable}, set(arena.names)
    if own != there:
        raise ArtifactError(
            f"this Module trains {len(own)} parameters, a Module made on the same state later "
            f"trains {len(there)}, and {sorted(own ^ there)[:8]} are trained by one of them only: "
            "a state trains one choice at a time. Use the later Module, or make a new one with "
            "trainable=[...]"
        )


def choose(state: CheckpointState, chosen: Sequence[str] | None) -> None:
    """Lets a state train these parameters, None: all that it can; another choice than before
    releases them. The same one in the order of another graph is no other."""
    before = state.chosen
    if (chosen is None) == (before is None) and set(chosen or ()) == set(before or ()):
        return
    release(state)
    state.choose(chosen)


def release(state: CheckpointState) -> None:
    """Takes parameters and moments out of the Arena, to be placed anew for another choice."""
    if state.arena is None:
        return
    state.memory.to_host()
    for name in state.arena.names:
        parameter = state.parameters[name]
        parameter.attach(np.array(parameter.data), None)
    for group in state.groups.values():
        for own in group.moments.values():
            own.update({kind: np.array(moment) for kind, moment in own.items()})
    state.arena = None


@dataclass(frozen=True)
class Room:
    """Memory for every parameter of a nominal state, which the state does not have yet."""

    arena: Arena
    homes: Mapping[str, np.ndarray]


def make_room(roles: Roles, layout: Sequence[ParameterSlot], state: CheckpointState) -> Room:
    """Memory for a nominal state (zeros, or what the device brings); the state stays as it is.

    Errors: ArtifactError for a trainable parameter that is not float32.
    """
    check_trainable_types(roles)
    memory = state.memory
    memory.prepare(_entries(layout, state))
    arena = Arena([(slot.name, slot.shape) for slot in layout if slot.trainable], memory)
    homes = {}
    for slot in layout:
        home = arena.view(arena.weights, slot.name) if slot.trainable else memory.frozen(slot.name)
        homes[slot.name] = np.zeros(slot.shape, np.float32) if home is None else home
    return Room(arena, homes)


def move_in(room: Room, state: CheckpointState) -> None:
    """Gives a nominal state its memory: it is filled."""
    arena = room.arena
    for name, home in room.homes.items():
        grad = arena.view(arena.gradients, name) if name in arena else None
        state.parameters[name].attach(home, grad)
    state.arena = arena
    state.mark_filled()
    arena.memory.publish()


def gather(layout: Sequence[ParameterSlot], state: CheckpointState) -> np.ndarray:
    """The parameters of ``layout`` as one new 1-D float32 array."""
    flat = np.empty(sum(slot.size for slot in layout), np.float32)
    gather_into(flat, layout, state)
    return flat


def gather_into(flat: np.ndarray, layout: Sequence[ParameterSlot], state: CheckpointState) -> None:
    """Writes the parameters of ``layout`` into one 1-D float32 array."""
    start = 0
    for slot in layout:
        flat[start : start + slot.size] = state.parameters[slot.name].data.reshape(-1)
        start += slot.size


def scatter(flat: np.ndarray, layout: Sequence[ParameterSlot], state: CheckpointState) -> None:
    """Writes one 1-D float32 array over the parameters of ``layout``."""
    state.check_pages()
    with state.memory.writing():
        homes = {slot.name: state.parameters[slot.name].writing() for slot in layout}
        spread(flat, layout, homes)


def spread(
    flat: np.ndarray, layout: Sequence[ParameterSlot], homes: Mapping[str, np.ndarray]
) -> None:
    """Writes one 1-D float32 array over the arrays of ``homes``, in the layout's order."""
    if any(np.may_share_memory(flat, home) for home in homes.values()):
        flat = flat.copy()  # a view of these very parameters, in another order
    start = 0
    for slot in layout:
        homes[slot.name][...] = flat[start : start + slot.size].reshape(slot.shape)
        start += slot.size
