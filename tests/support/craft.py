"""Checkpoints as no honest writer makes them: every field can be left out or be wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from edge_train.checkpoint.builder import Builder, Field


@dataclass
class RawTensor:
    """A tensor table; None leaves the field out."""

    name: str | None = "w"
    dims: Sequence[int] | None = (2,)
    data_type: int | None = 1
    raw: bytes | None = bytes(8)
    offset: int | None = None

    def add(self, builder: Builder) -> int:
        fields = []
        if self.name is not None:
            fields.append(Field(0, "", builder.text(self.name)))
        if self.dims is not None:
            fields.append(Field(2, "", builder.int64s(self.dims)))
        if self.raw is not None:
            fields.append(Field(4, "", builder.data(np.frombuffer(self.raw, np.uint8))))
        if self.data_type is not None:
            fields.append(Field(3, "i", self.data_type))
        if self.offset is not None:
            fields.append(Field(6, "q", self.offset))
        return builder.table(fields)


@dataclass
class RawState:
    """The optimizer state of one parameter."""

    name: str | None = "w"
    moments: Sequence[RawTensor] | None = (RawTensor("momentum0"),)

    def add(self, builder: Builder) -> int:
        fields = []
        if self.moments is not None:
            tensors = [tensor.add(builder) for tensor in self.moments]
            fields.append(Field(1, "", builder.references(tensors)))
        if self.name is not None:
            fields.append(Field(0, "", builder.text(self.name)))
        return builder.table(fields)


@dataclass
class RawGroup:
    """An optimizer group."""

    name: str | None = "group0"
    states: Sequence[RawState] | None = (RawState(),)

    def add(self, builder: Builder) -> int:
        fields = []
        if self.states is not None:
            states = [state.add(builder) for state in self.states]
            fields.append(Field(3, "", builder.references(states)))
        if self.name is not None:
            fields.append(Field(0, "", builder.text(self.name)))
        return builder.table(fields)


@dataclass
class RawProperty:
    """A property of any kind: ``value`` is an int, a float, a str or None (left out)."""

    name: str | None
    value: int | float | str | None

    def add(self, builder: Builder) -> int:
        fields = []
        if self.name is not None:
            fields.append(Field(0, "", builder.text(self.name)))
        if isinstance(self.value, str):
            fields.append(Field(1, "", builder.text(self.value)))
        elif self.value is not None:
            fields.append(Field(1, "f" if isinstance(self.value, float) else "q", self.value))
        return builder.table(fields)


@dataclass
class RawCheckpoint:
    """The file; ``bytes(...)`` gives it."""

    version: int | None = 2
    trainable: Sequence[RawTensor] | None = ()
    frozen: Sequence[RawTensor] | None = ()
    module: bool = True
    nominal: bool = False
    external: bool = False
    groups: Sequence[RawGroup] | None = None
    bag: tuple[Sequence[RawProperty] | None, ...] | None = None
    identifier: bytes = b"ODTC"
    extra: list[Field] = field(default_factory=list)

    def __bytes__(self) -> bytes:
        builder = Builder()
        fields = [] if self.version is None else [Field(0, "i", self.version)]
        if self.module:
            fields.append(Field(1, "", self._module(builder)))
        if self.groups is not None:
            groups = [group.add(builder) for group in self.groups]
            fields.append(Field(2, "", builder.references(groups)))
        if self.bag is not None:
            fields.append(Field(3, "", self._bag(builder)))
        builder.finish(builder.table([*fields, *self.extra]), self.identifier)
        return b"".join(builder.blocks())

    def _module(self, builder: Builder) -> int:
        fields = []
        for slot, tensors in enumerate((self.trainable, self.frozen)):
            if tensors is not None:
                added = [tensor.add(builder) for tensor in tensors]
                fields.append(Field(slot, "", builder.references(added)))
        fields += [Field(2, "B", 1)] * self.nominal + [Field(3, "B", 1)] * self.external
        return builder.table(fields)

    def _bag(self, builder: Builder) -> int:
        fields = []
        for slot, entries in enumerate(self.bag or ()):
            if entries is not None:
                added = [entry.add(builder) for entry in entries]
                fields.append(Field(slot, "", builder.references(added)))
        return builder.table(fields)
