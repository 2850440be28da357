"""Checkpoint to bytes: every table and offset laid out, tensor data by reference.

The bytes depend on the Checkpoint alone and are those of onnxruntime-training 1.19.2.
"""

from __future__ import annotations

from collections.abc import Mapping

from edge_train.checkpoint.builder import Builder, Field
from edge_train.checkpoint.format import IDENTIFIER, VERSION, Checkpoint, Group, Property
from edge_train.checkpoint.tensor import Tensor
from edge_train.errors import CheckpointError


def dumps(checkpoint: Checkpoint) -> bytes:
    """The bytes of a checkpoint without a data file."""
    if checkpoint.has_external_data:
        raise CheckpointError("a checkpoint with a data file cannot be one bytes object")
    return b"".join(layout(checkpoint).blocks())


def layout(checkpoint: Checkpoint) -> Builder:
    """Every byte of the file, tensor data by reference."""
    builder = Builder()
    trainable = [_tensor(builder, tensor) for tensor in checkpoint.trainable]
    frozen = [_tensor(builder, tensor) for tensor in checkpoint.frozen]
    # the reference saves no module state where there are no parameters, artifacts always do
    fields = [Field(0, "i", VERSION)]
    if trainable or frozen or checkpoint.groups is None:
        flags = (checkpoint.is_nominal, checkpoint.has_external_data)
        lists = (builder.references(trainable), builder.references(frozen))
        module = [Field(slot, "", at) for slot, at in enumerate(lists)]
        module += [Field(slot, "B", 1) for slot, flag in enumerate(flags, 2) if flag]
        fields.append(Field(1, "", builder.table(module)))
    groups = [_group(builder, group) for group in checkpoint.groups or ()]
    bag = _properties(builder, checkpoint.properties) if checkpoint.properties else None
    if checkpoint.groups is not None:
        fields.append(Field(2, "", builder.references(groups)))
    if bag is not None:
        fields.append(Field(3, "", bag))
    builder.finish(builder.table(fields), IDENTIFIER)
    return builder


def _tensor(builder: Builder, tensor: Tensor) -> int:
    fields = [Field(0, "", builder.text(tensor.name))]
    if tensor.doc_string is not None:
        fields.append(Field(1, "", builder.text(tensor.doc_string)))
    fields.append(Field(2, "", builder.int64s(tensor.dims)))
    fields.append(Field(3, "i", tensor.data_type))
    if tensor.strings is not None:
        texts = [builder.text(item) for item in tensor.strings]
        fields.append(Field(5, "", builder.references(texts)))
    elif tensor.offset >= 0:
        fields.append(Field(6, "q", tensor.offset))
    elif tensor.data is not None:
        data = builder.data(tensor.data)
        fields.append(Field(4, "", data))
    return builder.table(fields)


def _group(builder: Builder, group: Group) -> int:
    states = []
    for parameter, tensors in group.moments:
        moments = [_tensor(builder, tensor) for tensor in tensors]
        name = builder.text(parameter)
        vector = builder.references(moments)
        states.append(builder.table([Field(0, "", name), Field(1, "", vector)]))
    name = builder.text(group.name)
    vector = builder.references(states)
    fields = [Field(0, "", name)]
    if group.initial_learning_rate:
        fields.append(Field(2, "f", group.initial_learning_rate))
    if group.step:
        fields.append(Field(1, "q", group.step))
    return builder.table([*fields, Field(3, "", vector)])


def _properties(builder: Builder, properties: Mapping[str, Property]) -> int:
    ints, floats, strings = [], [], []
    for name, value in sorted(properties.items()):
        field = Field(0, "", builder.text(name))
        if isinstance(value, str):
            strings.append(builder.table([field, Field(1, "", builder.text(value))]))
        elif isinstance(value, float):
            # a default is left out as in the reference; -0.0 equals it and is no default to us
            keep = value != 0 or str(value) == "-0.0"
            floats.append(builder.table([field, Field(1, "f", value)] if keep else [field]))
        else:
            ints.append(builder.table([field, Field(1, "q", value)] if value else [field]))
    vectors = [builder.references(kind) for kind in (ints, floats, strings)]
    return builder.table([Field(slot, "", at) for slot, at in enumerate(vectors)])
