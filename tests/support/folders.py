"""Checkpoint folders as the releases before 1.16 wrote them, made with the onnx package."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from edge_train.checkpoint.state import CheckpointState


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def sequence(messages: Iterable[bytes]) -> bytes:
    """A ``.pbseq`` file: the count, then size and bytes of each message."""
    parts = list(messages)
    return varint(len(parts)) + b"".join(varint(len(part)) + part for part in parts)


def tensors(arrays: Mapping[str, np.ndarray]) -> bytes:
    return sequence(numpy_helper.from_array(a, n).SerializeToString() for n, a in arrays.items())


def scalar(name: str, value: int | float | str) -> bytes:
    """A property: typed data and no dims."""
    kinds = {int: TensorProto.INT64, float: TensorProto.FLOAT, str: TensorProto.STRING}
    item = value.encode() if isinstance(value, str) else value
    return helper.make_tensor(name, kinds[type(value)], (), [item]).SerializeToString()


def write_folder(state: CheckpointState, folder: Path) -> None:
    """The state as such a folder."""
    folder.mkdir()
    for name, kind in (("paramtrain", True), ("paramfrozen", False)):
        arrays = {n: p.data for n, p in state.parameters if p.requires_grad == kind}
        if arrays:
            (folder / f"{name}_tensors.pbseq").write_bytes(tensors(arrays))
    for group in state.groups.values():
        moments: dict[str, dict[str, np.ndarray]] = {}
        for parameter, own in group.moments.items():
            for moment, array in own.items():
                moments.setdefault(moment, {})[parameter] = array
        for moment, arrays in moments.items():
            (folder / f"optim_{group.name}_{moment}_tensors.pbseq").write_bytes(tensors(arrays))
        built_in = [
            scalar("builtin.initial_learning_rate", float(group.initial_learning_rate)),
            scalar("builtin.step", group.step),
        ]
        (folder / f"optim_{group.name}_properties.pbseq").write_bytes(sequence(built_in))
    if len(state.properties):
        custom = sequence(scalar(name, value) for name, value in state.properties)
        (folder / "custom_properties.pbseq").write_bytes(custom)
