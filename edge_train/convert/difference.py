"""What differs between two checkpoints: names, shapes, types, values, optimizer, properties."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from edge_train.checkpoint.format import Checkpoint, Group
from edge_train.checkpoint.source import Readable
from edge_train.checkpoint.tensor import Tensor
from edge_train.convert import intake, private
from edge_train.convert.foreign import described
from edge_train.convert.lazy import BLOCK, Array, Elements


@dataclass(frozen=True)
class Difference:
    """One tensor whose values differ: how many elements, and the largest |a - b|.

    ``largest`` is infinite where a NaN or infinity stands against another value.
    """

    name: str
    largest: float
    elements: int
    of: int


@dataclass(frozen=True)
class Comparison:
    """Two checkpoints, a and b, side by side; empty where they are equal.

    ``other`` holds sentences: another shape or type, trained here and frozen there, steps, rates,
    properties, moments that one of them lacks.
    """

    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    other: tuple[str, ...]
    values: tuple[Difference, ...]

    @property
    def equal(self) -> bool:
        """Whether nothing differs."""
        return not (self.only_a or self.only_b or self.other or self.values)

    @property
    def largest(self) -> float:
        """The largest difference of all tensors, 0 without any."""
        return max((difference.largest for difference in self.values), default=0.0)


def compare(a: Readable, b: Readable, tolerance: float = 0.0) -> Comparison:
    """Compare values element by element, in blocks; differences <= ``tolerance`` do not count.

    Nor does a Trainer's record of its run (seconds, losses, position): two runs that came to the
    same weights, moments and rate are equal.
    Two NaNs are equal. Of nominal checkpoints names alone are compared. ValueError for a tolerance
    below 0; raises what ``intake.opened`` raises.
    """
    if not tolerance >= 0:
        raise ValueError(f"the tolerance is {tolerance}, expected a number >= 0")
    with intake.opened(a) as left, intake.opened(b) as right:
        ours, theirs = _everything(left), _everything(right)
        names = [name for name in ours if name in theirs]
        other = list(_other(private.outside_a_run(left), private.outside_a_run(right)))
        values: list[Difference] = []
        for name in names if left.is_nominal == right.is_nominal else ():
            x, y = ours[name], theirs[name]
            if described(x) != described(y):
                other.append(f"'{name}' is {described(x)} in a, {described(y)} in b")
            elif x.strings is not None:
                if x.strings != y.strings:
                    values.append(_of_strings(name, x, y))
            else:
                values += _of_values(name, x, y, tolerance)
        return Comparison(
            only_a=tuple(name for name in ours if name not in theirs),
            only_b=tuple(name for name in theirs if name not in ours),
            other=tuple(other),
            values=tuple(values),
        )


def _everything(checkpoint: Checkpoint) -> dict[str, Tensor]:
    found = intake.parameters(checkpoint)
    for group in checkpoint.groups or ():
        for parameter, moments in group.moments:
            for moment in moments:
                found[f"{moment.name} of '{parameter}' in group '{group.name}'"] = moment
    return found


def _of_strings(name: str, x: Tensor, y: Tensor) -> Difference:
    pairs = list(zip(x.strings or (), y.strings or (), strict=True))
    return Difference(name, math.inf, sum(p != q for p, q in pairs), len(pairs))


def _of_values(name: str, x: Tensor, y: Tensor, tolerance: float) -> Iterator[Difference]:
    readers = Elements(x), Elements(y)
    count = math.prod(x.dims) if x.data is not None and x.data.nbytes else 0  # nominal: none
    largest, elements = 0.0, 0
    for start in range(0, count, BLOCK):
        length = min(BLOCK, count - start)
        p, q = (reader.read(start, length) for reader in readers)
        apart = _apart(p, q)
        elements += int(np.count_nonzero(apart > tolerance))
        largest = max(largest, float(apart.max(initial=0.0)))
    if elements:
        yield Difference(name, largest, elements, count)


def _apart(p: Array, q: Array) -> Array:
    """|p - q| in float64: 0 for equal values and for two NaNs, infinite for NaN against a value."""
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.abs(p.astype(np.float64) - q.astype(np.float64))
        if p.dtype.kind in "iu":  # beyond 2**53 float64 would call neighbours equal
            apart = np.where((p != q) & (apart == 0), 1.0, apart)
    apart = np.where(np.isnan(apart), np.inf, apart)
    same = (p == q) | ((p != p) & (q != q))
    return np.where(same, 0.0, apart)


def _other(left: Checkpoint, right: Checkpoint) -> Iterator[str]:
    if left.is_nominal != right.is_nominal:
        which = "a" if left.is_nominal else "b"
        yield f"{which} is nominal (names without data): values are not compared"
    trained = {t.name for t in left.trainable}, {t.name for t in right.trainable}
    frozen = {t.name for t in left.frozen}, {t.name for t in right.frozen}
    for name in sorted(trained[0] & frozen[1]):
        yield f"'{name}' is trained in a, frozen in b"
    for name in sorted(frozen[0] & trained[1]):
        yield f"'{name}' is frozen in a, trained in b"
    yield from _groups(left, right)
    for name in sorted(left.properties.keys() | right.properties.keys()):
        one, two = left.properties.get(name), right.properties.get(name)
        if not intake.is_same(one, two):
            yield f"property '{name}' is {_shown(one)} in a, {_shown(two)} in b"


def _groups(left: Checkpoint, right: Checkpoint) -> Iterator[str]:
    ours, theirs = ({g.name: g for g in c.groups or ()} for c in (left, right))
    for name in sorted(ours.keys() | theirs.keys()):
        one, two = _position(ours.get(name)), _position(theirs.get(name))
        if one != two:
            yield f"optimizer group '{name}' is {one} in a, {two} in b"


def _position(group: Group | None) -> str:
    if group is None:
        return "missing"
    return f"at step {group.step} with initial rate {group.initial_learning_rate:.9g}"


def _shown(value: object) -> str:
    return "missing" if value is None else repr(value)[:100]
