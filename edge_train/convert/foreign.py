"""What the formats of named arrays (safetensors, .npz) share: all of a checkpoint beside its data.

Such a file has one array for each parameter, under the parameter's name, one for each moment under
``edge_train.optimizer/GROUP/MOMENT/PARAMETER``, and a JSON text that says the rest: the split into
trainable and frozen, groups, properties, order. With it the way back gives the same checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from edge_train import dtypes
from edge_train.checkpoint.format import Checkpoint, Group, Property
from edge_train.checkpoint.source import Readable
from edge_train.checkpoint.tensor import Tensor
from edge_train.convert import intake
from edge_train.errors import CheckpointCorrupt, CheckpointError
from edge_train.patterns import matching

#: the name under which the JSON text is kept; names that begin so are not for parameters
KEY = "edge_train"
_INT64 = range(-(2**63), 2**63)


def entries(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """Every tensor under its name in the file; CheckpointError for a parameter of such a name."""
    found: dict[str, Tensor] = {}
    for name, tensor in intake.parameters(checkpoint).items():
        if _is_kept(name):
            raise CheckpointError(
                f"the parameter '{name}' has a name that is kept for {KEY} itself; rename it first"
            )
        found[name] = tensor
    for group in checkpoint.groups or ():
        for parameter, moments in group.moments:
            for moment in moments:
                found[_moment_key(group.name, moment.name, parameter)] = moment
    if len(found) != sum(1 for _ in checkpoint.tensors()):
        raise CheckpointError("names of groups or moments contain '/' so that two of them collide")
    return found


def description(checkpoint: Checkpoint) -> str:
    """The JSON text for ``restored``."""
    groups = None
    if checkpoint.groups is not None:
        groups = [_group_fields(group) for group in checkpoint.groups]
    tensors = checkpoint.trainable + checkpoint.frozen
    fields = {
        "version": 1,
        "trainable": [tensor.name for tensor in checkpoint.trainable],
        "frozen": [tensor.name for tensor in checkpoint.frozen],
        "groups": groups,
        "properties": dict(checkpoint.properties),
        "doc_strings": {t.name: t.doc_string for t in tensors if t.doc_string is not None},
    }
    return json.dumps(fields, ensure_ascii=False)


def restored(found: Mapping[str, Tensor], text: str, label: str) -> Checkpoint:
    """The checkpoint of a file that this package wrote.

    CheckpointCorrupt for a text that it did not write or that names arrays which are not there.
    """
    left = dict(found)

    def take(key: str) -> Tensor:
        if key not in left:
            raise CheckpointCorrupt(f"{label}: tensor '{key}' is described and not there")
        return left.pop(key)

    try:
        checkpoint = _restored(json.loads(text), take)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise CheckpointCorrupt(f"{label}: the description '{KEY}' is damaged ({error})") from error
    if left:
        raise CheckpointCorrupt(f"{label}: tensors that its description lacks: {sorted(left)[:8]}")
    return checkpoint


def arranged(
    found: Mapping[str, Tensor], label: str, like: Readable | None, frozen: Sequence[str]
) -> Checkpoint:
    """The checkpoint of a file that another program wrote.

    With ``like`` (a checkpoint) it has the names, the split and the shapes of that one. Without,
    float32 tensors are trained, unless a name or pattern of ``frozen`` fits, and all others frozen.
    What this package itself added to a file is left out.
    Raises CheckpointError listing what does not fit, ValueError for a pattern that fits nothing.
    """
    found = {name: tensor for name, tensor in found.items() if not _is_kept(name)}
    if like is not None:
        if frozen:
            raise ValueError("the frozen tensors are named by 'like' already; give one of the two")
        with intake.opened(like) as model:
            return arranged_like(found, label, model)
    kept = {name for name, tensor in found.items() if tensor.data_type != dtypes.FLOAT}
    for pattern in frozen:
        hits = matching(pattern, found)
        if not hits:
            raise ValueError(f"the pattern '{pattern}' fits no tensor of {label}")
        kept.update(hits)
    return Checkpoint(
        trainable=tuple(tensor for name, tensor in found.items() if name not in kept),
        frozen=tuple(tensor for name, tensor in found.items() if name in kept),
    )


def arranged_like(found: Mapping[str, Tensor], label: str, model: Checkpoint) -> Checkpoint:
    """Tensors with the split of ``model``; CheckpointError listing everything that does not fit."""
    problems = []
    for name, tensor in intake.parameters(model).items():
        if name not in found:
            problems.append(f"'{name}' is not there")
            continue
        got, told = found[name], tensor
        if not model.is_nominal and (got.dims, got.data_type) != (told.dims, told.data_type):
            problems.append(f"'{name}' is {described(got)}, expected {described(told)}")
    more = sorted(found.keys() - intake.parameters(model).keys())
    problems += [f"'{name}' is no parameter of the model" for name in more]
    if problems:
        listed = "\n  ".join(problems)
        raise CheckpointError(
            f"{label} does not fit the checkpoint it should be like ({len(problems)} "
            f"mismatches):\n  {listed}\nTo copy what fits, convert it alone, then transfer."
        )

    def taken(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(replace(found[t.name], doc_string=t.doc_string) for t in tensors)

    return Checkpoint(trainable=taken(model.trainable), frozen=taken(model.frozen))


def described(tensor: Tensor) -> str:
    """Type and shape of a tensor, for a message."""
    return f"{dtypes.name_of(tensor.data_type)} {list(tensor.dims)}"


def _is_kept(name: str) -> bool:
    return name == KEY or name.startswith(f"{KEY}.")


def _moment_key(group: str, moment: str, parameter: str) -> str:
    return f"{KEY}.optimizer/{group}/{moment}/{parameter}"


def _group_fields(group: Group) -> dict[str, Any]:
    return {
        "name": group.name,
        "step": group.step,
        "initial_learning_rate": group.initial_learning_rate,
        "moments": [[name, [moment.name for moment in own]] for name, own in group.moments],
    }


def _restored(fields: dict[str, Any], take: Any) -> Checkpoint:
    if fields["version"] != 1:
        raise ValueError(f"its version is {fields['version']!r}, expected 1")
    documents = fields["doc_strings"]

    def tensors(names: list[str]) -> tuple[Tensor, ...]:
        return tuple(
            replace(take(_text(n)), name=n, doc_string=_maybe(documents.get(n))) for n in names
        )

    trainable, frozen = tensors(fields["trainable"]), tensors(fields["frozen"])
    groups = fields["groups"]
    if groups is not None:
        groups = tuple(_restored_group(group, take) for group in groups)
    properties = {_text(n): _property(v) for n, v in fields["properties"].items()}
    return Checkpoint(trainable, frozen, groups=groups, properties=properties)


def _restored_group(fields: dict[str, Any], take: Any) -> Group:
    name = _text(fields["name"])
    moments = tuple(
        (
            _text(parameter),
            tuple(replace(take(_moment_key(name, _text(k), parameter)), name=k) for k in kinds),
        )
        for parameter, kinds in fields["moments"]
    )
    step, rate = fields["step"], _property(fields["initial_learning_rate"])
    if type(step) is not int or step not in _INT64 or isinstance(rate, str):
        raise ValueError(f"group '{name}' has step {step!r} and rate {rate!r}")
    return Group(name, step, float(rate), moments)


def _property(value: Any) -> Property:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, float) or (type(value) is int and value in _INT64):
        return value
    raise ValueError(f"{value!r} is no int64, float or string")


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no string")
    value.encode("utf-8")  # a ValueError for half a surrogate pair
    return value


def _maybe(value: Any) -> str | None:
    return None if value is None else _text(value)
