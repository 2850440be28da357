"""Holds what an optimizer graph says of its tensors against the parameters that are trained.

A graph of generate_artifacts says nothing of them: it updates whatever the training graph has, and
serves every model. One that takes its sequences apart, or declares sizes, was made for one model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from edge_train.errors import ArtifactError
from edge_train.graph import ir
from edge_train.optimizer_graph import Declared
from edge_train.optimizer_spec import OptimizerSpec

_MOST_LISTED = 8

Shape = tuple[int, ...]


def check_tensors(spec: OptimizerSpec, trained: Mapping[str, Shape]) -> None:
    """ArtifactError listing how the graph's tensors differ from the parameters of ``trained``.

    Names play no part: the tensors of a sequence have none. Nor does their order, which means
    nothing to an update that is the same for all.
    """
    problems = list(_problems(spec, trained))
    if not problems:
        return
    listed = "\n  ".join(problems[:_MOST_LISTED])
    more = f"\n  and {len(problems) - _MOST_LISTED} more" if len(problems) > _MOST_LISTED else ""
    raise ArtifactError(
        f"the optimizer graph does not belong to the training graph:\n  {listed}{more}\nPass the "
        "optimizer graph of this model (with trainable=[...]: of this choice), or the "
        "optimizer_model.onnx that generate_artifacts wrote, which serves any model"
    )


def _problems(spec: OptimizerSpec, trained: Mapping[str, Shape]) -> Iterator[str]:
    if spec.tensors is not None and spec.tensors != len(trained):
        yield (
            f"it updates {spec.tensors} tensors one by one, the training graph has {len(trained)} "
            f"trainable parameters: {_names(trained)}"
        )
    for one in spec.declared:
        if one.place is None:
            others = {n: shape for n, shape in trained.items() if not _fits(shape, one.dims)}
            if others:
                yield (
                    f"it declares every tensor of '{one.source}' as {_dims(one.dims)}, expected "
                    f"the shapes of all trainable parameters: {_shapes(others)}"
                )
    for source in dict.fromkeys(one.source for one in spec.declared):
        single = [o for o in spec.declared if o.source == source and o.place is not None]
        yield from _left_over(single, trained)


def _left_over(single: Sequence[Declared], trained: Mapping[str, Shape]) -> Iterator[str]:
    """The tensors of a sequence for which there are no parameters of their shape, or too few."""
    there = Counter(trained.values())
    for one in {one.place: one for one in single}.values():
        fixed = tuple([dim for dim in one.dims if isinstance(dim, int)])
        if len(fixed) == len(one.dims):
            there[fixed] -= 1
            found = there[fixed] >= 0
        else:  # a shape with an open axis takes nothing away from the others
            found = any(_fits(shape, one.dims) for shape in trained.values())
        if not found:
            yield (
                f"it declares tensor {one.place} of '{one.source}' as {_dims(one.dims)}, expected "
                f"the shape of a trainable parameter of its own: {_shapes(trained)}"
            )


def _fits(shape: Shape, dims: Sequence[ir.Dim]) -> bool:
    return len(shape) == len(dims) and all(
        not isinstance(dim, int) or dim == size for size, dim in zip(shape, dims, strict=True)
    )


def _dims(dims: Sequence[ir.Dim]) -> str:
    return f"({', '.join('?' if dim is None else str(dim) for dim in dims)})"


def _names(trained: Mapping[str, Shape]) -> str:
    return _cut([f"'{name}'" for name in trained])


def _shapes(trained: Mapping[str, Shape]) -> str:
    return _cut([f"'{name}' {shape}" for name, shape in trained.items()])


def _cut(words: Sequence[str]) -> str:
    more = f" and {len(words) - _MOST_LISTED} more" if len(words) > _MOST_LISTED else ""
    return ", ".join(words[:_MOST_LISTED]) + more
