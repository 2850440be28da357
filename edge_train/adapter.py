"""onnxruntime's adapter file: named tensors that a run may feed to a model's inputs.

``onnxruntime.LoraAdapter().Load(path)`` reads it, ``RunOptions.add_active_adapter`` uses it,
``onnxruntime.AdapterFormat.read_adapter`` looks into it. A FlatBuffer of identifier ``TORT``:
Adapter (0 format_version, 1 adapter_version, 2 model_version, 3 parameters) of
Parameter (0 name, 1 dims, 2 data_type, 3 raw_data). The bytes are those of onnxruntime's writer.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from edge_train import atomic, dtypes
from edge_train.checkpoint.builder import Builder, Field
from edge_train.checkpoint.tensor import Tensor
from edge_train.errors import ArtifactError
from edge_train.patterns import matching

IDENTIFIER = b"TORT"
FORMAT_VERSION = 1
#: what parameters of low-rank adapters are called by the common exporters
LOW_RANK = ("*lora_A*", "*lora_B*", "*lora_a*", "*lora_b*")
# the types that every onnxruntime takes from an adapter file
_HELD = frozenset(dtypes.NUMPY) - {dtypes.BOOL, dtypes.COMPLEX64, dtypes.COMPLEX128}


def named(names: Iterable[str], patterns: Sequence[str]) -> list[str]:
    """The names that some name or pattern means, in order; ValueError for one that fits none.

    Of LOW_RANK one that fits is enough.
    """
    known = list(names)
    if isinstance(patterns, str):
        raise TypeError(f"the names of an adapter: expected a list of names, got '{patterns}'")
    hits = {pattern: matching(pattern, known) for pattern in patterns}
    idle = [pattern for pattern in patterns if not hits[pattern]]
    if len(idle) == len(patterns) or (idle and tuple(patterns) != LOW_RANK):
        raise ValueError(f"no parameter is named {idle}; there are {known[:16]}")
    chosen = set().union(*hits.values())
    return [name for name in known if name in chosen]


def write(
    tensors: Sequence[Tensor],
    path: str | os.PathLike[str],
    adapter_version: int = 1,
    model_version: int = 1,
) -> None:
    """Write an adapter file in place of ``path``; the versions (int32) are the application's own.

    Raises ArtifactError, before anything is written, naming a tensor that onnxruntime would refuse:
    strings, bool, complex numbers, bfloat16, no dimensions. ValueError for a version, OSError.
    """
    for what, version in (("adapter", adapter_version), ("model", model_version)):
        if not isinstance(version, int) or version not in range(-(2**31), 2**31):
            raise ValueError(f"the {what} version is {version!r}, expected an int32")
    builder = Builder()
    places = [_parameter(builder, tensor) for tensor in tensors]
    table = [Field(3, "", builder.references(places))]
    table.append(Field(2, "i", model_version))
    table.append(Field(1, "i", adapter_version))
    table.append(Field(0, "i", FORMAT_VERSION))
    builder.finish(builder.table(table), IDENTIFIER)
    with atomic.replacing(path) as file:
        for block in builder.blocks():
            file.write(block)


def _parameter(builder: Builder, tensor: Tensor) -> int:
    if tensor.data_type == dtypes.STRING or tensor.data is None:
        raise ArtifactError(f"tensor '{tensor.name}' holds no numbers: an adapter cannot have it")
    if tensor.data_type not in _HELD:
        raise ArtifactError(
            f"tensor '{tensor.name}' is of {dtypes.name_of(tensor.data_type)}: onnxruntime takes "
            "an adapter of integers, float16, float32 and float64 only; leave it out by its name"
        )
    if not tensor.dims:
        raise ArtifactError(
            f"tensor '{tensor.name}' has no dimensions: onnxruntime takes an adapter of tensors "
            "with one or more; leave it out by its name"
        )
    name = builder.text(tensor.name)
    dims = builder.int64s(tensor.dims)
    data = builder.data(tensor.data)
    number = Field(2, "i", tensor.data_type)
    return builder.table([Field(3, "", data), number, Field(1, "", dims), Field(0, "", name)])
