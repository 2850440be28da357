"""The folder format of onnxruntime-training before 1.16: read only, a save writes the one file.

paramtrain_tensors.pbseq             trainable parameters
paramfrozen_tensors.pbseq            frozen parameters
optim_<group>_<moment>_tensors.pbseq one moment of every parameter
optim_<group>_properties.pbseq       builtin.step and builtin.initial_learning_rate
custom_properties.pbseq              the user's properties, as scalar tensors
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from edge_train import dtypes
from edge_train.checkpoint import pbseq
from edge_train.checkpoint import source as sources
from edge_train.checkpoint.format import Checkpoint, Group, Property, validate
from edge_train.checkpoint.source import FileSource
from edge_train.checkpoint.tensor import Tensor
from edge_train.errors import CheckpointCorrupt, CheckpointError

_TENSORS, _PROPERTIES = "_tensors.pbseq", "_properties.pbseq"
_STEP, _RATE = "builtin.step", "builtin.initial_learning_rate"
_DEFAULT_RATE = 0.001  # of a group without properties, as those releases had it
_MAX_FILES = 256  # every one stays open while its tensors are read
_Moments = dict[str, list[Tensor]]


@contextmanager
def opened(folder: str) -> Iterator[Checkpoint]:
    """The checkpoint in a folder; its tensors can be read inside.

    Raises CheckpointError for a folder without parameter files and for types that cannot be
    loaded, CheckpointCorrupt for damaged files, OSError of opening them.
    """
    names = sorted(n for n in os.listdir(folder) if n.endswith(".pbseq") and n[0] != ".")
    if not any(name.startswith(("paramtrain", "paramfrozen")) for name in names):
        raise CheckpointError(
            f"checkpoint '{folder}' is a folder, but not in the folder format of older releases "
            f"(before 1.16): it has no paramtrain{_TENSORS}; expected such a folder, or one file"
        )
    if len(names) > _MAX_FILES:
        raise CheckpointError(
            f"checkpoint folder '{folder}' has {len(names)} .pbseq files, at most {_MAX_FILES}"
        )
    with ExitStack() as stack:
        found: dict[str, list[Tensor]] = {}
        for name in names:
            path = os.path.join(folder, name)
            sources.refuse_special(path)
            file = stack.enter_context(open(path, "rb"))
            found[name] = pbseq.read(FileSource(file, f"'{path}'", path))
        yield assembled(found, folder)


def assembled(found: dict[str, list[Tensor]], folder: str) -> Checkpoint:
    """The checkpoint of a folder's files, by their names; raises what ``opened`` raises."""
    trainable: list[Tensor] = []
    frozen: list[Tensor] = []
    properties: dict[str, Property] = {}
    moments: dict[str, _Moments] = {}
    scalars: dict[str, dict[str, Property]] = {}
    for name, tensors in found.items():
        where = f"checkpoint file '{os.path.join(folder, name)}'"
        if name.startswith("paramtrain"):
            trainable += tensors
        elif name.startswith("paramfrozen"):
            frozen += tensors
        elif name.startswith("custom"):
            properties.update(_scalars(tensors, where))
        elif name.startswith("optim_") and name.endswith(_TENSORS):
            group, moment = _group_and_moment(name, where)
            _add_moments(moments.setdefault(group, {}), moment, tensors)
        elif name.startswith("optim_") and name.endswith(_PROPERTIES):
            group = name[len("optim_") : -len(_PROPERTIES)]
            scalars[group] = _scalars(tensors, where)
    groups = tuple(
        _group(name, moments.get(name, {}), scalars.get(name, {}), folder)
        for name in sorted(moments.keys() | scalars.keys())
    )
    parts = tuple(trainable), tuple(frozen)
    checkpoint = Checkpoint(*parts, groups=groups, properties=properties)
    validate(checkpoint, f"folder '{folder}'")
    return checkpoint


def _group_and_moment(name: str, where: str) -> tuple[str, str]:
    group, separator, moment = name[len("optim_") : -len(_TENSORS)].rpartition("_")
    if not (separator and group and moment):
        raise CheckpointError(f"{where}: expected a name optim_<group>_<moment>{_TENSORS}")
    return group, moment


def _add_moments(moments: _Moments, moment: str, tensors: list[Tensor]) -> None:
    for tensor in tensors:
        own = moments.setdefault(tensor.name, [])
        own.append(Tensor(moment, tensor.data_type, tensor.dims, tensor.data))


def _group(name: str, moments: _Moments, scalars: dict[str, Property], folder: str) -> Group:
    step, rate = scalars.get(_STEP, 0), scalars.get(_RATE, _DEFAULT_RATE)
    if not isinstance(step, int) or isinstance(rate, str):
        raise CheckpointCorrupt(
            f"checkpoint folder '{folder}': group '{name}' has step {step!r} and learning rate "
            f"{rate!r}, expected an int64 and a float"
        )
    return Group(name, step, float(rate), tuple((n, tuple(t)) for n, t in moments.items()))


def _scalars(tensors: list[Tensor], where: str) -> dict[str, Property]:
    return {
        tensor.name: _scalar(tensor, f"{where}: property '{tensor.name}'") for tensor in tensors
    }


def _scalar(tensor: Tensor, where: str) -> Property:
    kind = tensor.data_type
    if kind == dtypes.STRING and tensor.strings is not None and len(tensor.strings) == 1:
        return tensor.strings[0]
    if kind not in (dtypes.INT64, dtypes.FLOAT):
        raise CheckpointCorrupt(
            f"{where} is {dtypes.name_of(kind)}, expected one int64, float32 or string"
        )
    itemsize = dtypes.NUMPY[kind].itemsize
    if tensor.data is None or tensor.data.nbytes != itemsize:
        got = 0 if tensor.data is None else tensor.data.nbytes
        raise CheckpointCorrupt(f"{where} has {got} bytes of data, expected {itemsize}")
    value = Tensor(tensor.name, kind, (), tensor.data).array()
    return int(value) if kind == dtypes.INT64 else float(value)
