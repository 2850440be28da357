"""CheckpointState: what a training session keeps: parameters, optimizer groups, properties.

It comes from a checkpoint file and goes back into one. A Module and an Optimizer put their live
arrays into it, so that a save at any time stores the present values.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from edge_train import dtypes
from edge_train.arena import Arena
from edge_train.arena_memory import Memory
from edge_train.checkpoint import files, previous
from edge_train.checkpoint.format import DATA_IDENTITY, Checkpoint, Group, Property
from edge_train.checkpoint.parameter import Array, Parameter, Parameters
from edge_train.checkpoint.properties import RESERVED, Properties
from edge_train.checkpoint.source import Readable
from edge_train.checkpoint.tensor import Tensor
from edge_train.errors import CheckpointError

if TYPE_CHECKING:
    from edge_train.checkpoint.mapped import MappedFiles
    from edge_train.device import Device

TRAINABLE = "edge_train.trainable"  # the private property that keeps what a Module's user chose


@dataclass
class OptimizerGroup:
    """Optimizer state: ``moments[parameter]["momentum0"]`` are arrays of the parameter's shape.

    An Optimizer with moments of 8 bits puts objects there that become arrays by np.asarray.
    """

    name: str
    step: int = 0
    initial_learning_rate: float = 0.001
    moments: dict[str, dict[str, Array]] = field(default_factory=dict)


class CheckpointState:
    """The state of a training session; made by ``load_checkpoint``.

    ``groups`` holds the optimizer groups by name and ``private`` the package's own strings, stored
    as properties whose names begin with "edge_train.".

    A copy (copy, deepcopy, pickle) has the present values and belongs to no Module.
    """

    def __init__(self, parameters: Iterable[Parameter] = (), *, is_nominal: bool = False) -> None:
        by_name: dict[str, Parameter] = {}
        for parameter in parameters:
            by_name.setdefault(parameter.name, parameter)  # the first wins, as in the reference
        self._parameters = Parameters(by_name)
        self._properties = Properties()
        self._is_nominal = is_nominal
        self._has_external_data = False
        self.live_groups: dict[str, OptimizerGroup] = {}
        self.private: dict[str, str] = {}
        self.arena: Arena | None = None  # the trainable parameters' memory, made by a Module
        self.memory = Memory()  # where an Arena is to lie
        self._mapped: MappedFiles | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Copied arrays are views of no arena: a Module on the copy has to place them anew.
        self.check_pages()
        self.memory.to_host()
        return {**self.__dict__, "arena": None, "memory": Memory(), "_mapped": None}

    def __copy__(self) -> CheckpointState:
        return copy.deepcopy(self)

    @classmethod
    def load_checkpoint(
        cls, checkpoint_uri: Readable, *, device: str | Device = "cpu"
    ) -> CheckpointState:
        """The state in a checkpoint file, complete or nominal.

        ``checkpoint_uri`` is a path (str or PathLike), the bytes of the file (bytes, bytearray,
        memoryview), or a binary file object, read from its position on. Raises FileNotFoundError,
        CheckpointCorrupt, CheckpointVersion, CheckpointError, and TypeError for anything else.

        ``device`` is where a Module will put the parameters (see there). "file" maps the checkpoint
        instead of reading it: frozen parameters cost no private memory. Such a file may be
        replaced, as every save here does, but not be overwritten in place; that is noticed by
        its size and its time (CheckpointError at the next step or save).
        """
        files_of, memory = _memory_for(checkpoint_uri, device)
        with (
            previous.named_when_broken(checkpoint_uri),
            files.open_checkpoint(checkpoint_uri) as checkpoint,
        ):
            parameters = _parameters(checkpoint, files_of)
            state = cls(parameters, is_nominal=checkpoint.is_nominal)
            state.memory, state._mapped = memory, files_of
            state._has_external_data = checkpoint.has_external_data
            state.groups = {group.name: _group(group) for group in checkpoint.groups or ()}
            state.private, own = _split(checkpoint.properties)
            state._properties = Properties(own)
            state._restore_choice()
        return state

    @classmethod
    def save_checkpoint(
        cls,
        state: CheckpointState,
        checkpoint_uri: str | os.PathLike[str],
        include_optimizer_state: bool = True,
        *,
        keep_previous: bool = False,
    ) -> None:
        """Save ``state`` so that the file is the old one or the new one at every moment.

        ``keep_previous`` leaves the state that was there as ``<checkpoint_uri>.previous``; the
        error of a file that is broken later names it.

        The optimizer's moments are stored by default (onnxruntime-training asks for
        ``include_optimizer_state=True``): a run that is resumed without them is another run.
        A missing folder is created. Raises CheckpointError if the file cannot be written.
        """
        if not isinstance(state, CheckpointState):
            raise TypeError(f"state is a CheckpointState, got {type(state).__name__}")
        if not isinstance(checkpoint_uri, (str, os.PathLike)):
            raise TypeError(f"checkpoint_uri is a path, got {type(checkpoint_uri).__name__}")
        if keep_previous:
            previous.keep(os.fsdecode(checkpoint_uri))
        files.write(state.to_checkpoint(include_optimizer_state), checkpoint_uri)

    @property
    def parameters(self) -> Parameters:
        """The model parameters by name."""
        return self._parameters

    @property
    def properties(self) -> Properties:
        """The user's properties by name."""
        return self._properties

    @property
    def is_nominal(self) -> bool:
        """Whether the parameters have names and no data yet."""
        return self._is_nominal

    @property
    def groups(self) -> dict[str, OptimizerGroup]:
        """The optimizer groups by name; brings moments back that a device holds.

        ``live_groups`` are the same without that: an array of theirs may be of a step before.
        """
        self.memory.to_host()
        return self.live_groups

    @groups.setter
    def groups(self, groups: dict[str, OptimizerGroup]) -> None:
        self.live_groups = groups

    def mark_filled(self) -> None:
        """Every parameter has data now (the Module attached it)."""
        self._is_nominal = False

    @property
    def chosen(self) -> tuple[str, ...] | None:
        """The parameters that a Module's ``trainable`` chose; None: all that can be trained."""
        names = self.private.get(TRAINABLE)
        return None if names is None else tuple(json.loads(names))

    def choose(self, names: Collection[str] | None) -> None:
        """Remembers which parameters are trained, also in the checkpoint; None: all that can be.

        Optimizer moments of the others are dropped.
        """
        self.private.pop(TRAINABLE, None)
        if names is not None:
            self.private[TRAINABLE] = json.dumps(list(names))
            for group in self.groups.values():
                group.moments = {k: own for k, own in group.moments.items() if k in names}
        for name, parameter in self._parameters:
            parameter.choose(names is None or name in names)

    def _restore_choice(self) -> None:
        text = self.private.get(TRAINABLE)
        if text is None:
            return
        try:
            names = json.loads(text)
        except (ValueError, RecursionError):
            names = None
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise CheckpointError(
                f"the checkpoint's property '{TRAINABLE}' is '{text[:80]}'; expected a JSON list "
                "of parameter names: it was written by something else than edge_train"
            )
        for name, parameter in self._parameters:
            parameter.choose(name in names)

    def check_pages(self) -> None:
        """Raises when a mapped file was written to: its pages cannot be trusted.

        Errors: CheckpointError for the checkpoint, ValueError for the file of another device.
        """
        self.memory.check()
        if self._mapped is not None:
            self._mapped.check()

    def to_checkpoint(self, include_optimizer_state: bool = True) -> Checkpoint:
        """The state as the tables of the format; arrays are shared, not copied."""
        self.check_pages()
        self.memory.to_host()
        groups = self.groups.values() if include_optimizer_state else ()
        properties: dict[str, Property] = {**dict(self._properties), **self.private}
        everything = [parameter for _, parameter in self._parameters]
        return Checkpoint(
            trainable=tuple(_stored(p) for p in everything if p.has_gradient),
            frozen=tuple(_stored(p) for p in everything if not p.has_gradient),
            is_nominal=self._is_nominal,
            has_external_data=self._has_external_data,
            groups=tuple(_stored_group(group) for group in sorted(groups, key=lambda g: g.name)),
            properties=properties,
        )

    def __repr__(self) -> str:
        kind = "nominal, " if self._is_nominal else ""
        return (
            f"CheckpointState({kind}{len(self._parameters)} parameters, {len(self.groups)} "
            f"optimizer groups, {len(self._properties)} properties)"
        )


def _memory_for(
    checkpoint_uri: Readable, device: str | Device
) -> tuple[MappedFiles | None, Memory]:
    """Whether the checkpoint is mapped, and where its Arena is to lie."""
    if device in ("cpu", "cpu:0"):
        return None, Memory()
    from edge_train.checkpoint.mapped import MappedFiles, refuse_other_files
    from edge_train.device.memories import memory_named

    kind, _, argument = device.partition(":") if isinstance(device, str) else ("", "", "")
    if kind != "file":
        return None, memory_named(device)
    refuse_other_files(checkpoint_uri, argument)
    return MappedFiles(), Memory()


def _parameters(checkpoint: Checkpoint, files_of: MappedFiles | None) -> list[Parameter]:
    read = Tensor.array if files_of is None else files_of.array
    taken: set[str] = set()
    parameters = []
    for tensors, trainable in ((checkpoint.trainable, True), (checkpoint.frozen, False)):
        for tensor in tensors:
            if tensor.name in taken:
                continue
            taken.add(tensor.name)
            array = None if checkpoint.is_nominal else read(tensor)
            parameters.append(Parameter(tensor.name, trainable, array))
    return parameters


def _split(properties: Mapping[str, Property]) -> tuple[dict[str, str], dict[str, Property]]:
    """The package's own strings, and the user's properties."""
    private: dict[str, str] = {}
    own: dict[str, Property] = {}
    for name, value in properties.items():
        if name == DATA_IDENTITY:
            continue  # made anew by each save
        if name.startswith(RESERVED) and isinstance(value, str):
            private[name] = value
        else:
            own[name] = value
    return private, own


def _group(group: Group) -> OptimizerGroup:
    moments: dict[str, dict[str, Array]] = {}
    for parameter, tensors in group.moments:
        own = moments.setdefault(parameter, {})
        for tensor in tensors:
            if tensor.name not in own:
                own[tensor.name] = tensor.array()
    return OptimizerGroup(group.name, group.step, group.initial_learning_rate, moments)


def _stored(parameter: Parameter) -> Tensor:
    array = parameter._array
    if array is None:
        return Tensor(parameter.name, dtypes.FLOAT, (), np.empty(0, np.float32))
    return Tensor.of(parameter.name, array)


def _stored_group(group: OptimizerGroup) -> Group:
    moments = tuple(
        (name, tuple(Tensor.of(kind, array) for kind, array in sorted(own.items())))
        for name, own in sorted(group.moments.items())
    )
    return Group(group.name, group.step, group.initial_learning_rate, moments)
