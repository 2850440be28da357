"""What a user feeds: counted, named and checked before a graph runs.

Bad input is refused here, in Python's words: onnxruntime would read out of bounds, divide by zero
or name an inner node.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from edge_train import dtypes
from edge_train.errors import ShapeMismatch
from edge_train.graph import ir
from edge_train.graph.lowering import LabelRange
from edge_train.runner import SMALL, Fed
from edge_train.runtime import onnxruntime

_ORT_VALUE = frozenset({onnxruntime.OrtValue})
_PLAIN = frozenset({list, tuple, int, float, bool})
_MOST_AXES = 64  # that an array of NumPy has
_MOST_BITS = 128  # of an integer that a message shows
# kinds of NumPy dtypes: declared -> those that plain Python values may have
_FITTING = {"f": "fiu", "i": "iu", "u": "iu", "b": "b"}


class _Place(NamedTuple):
    """What was seen of an array; ``copy`` is fed in place of a small one, and filled anew."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    copy: np.ndarray | None


class InputSpec:
    """The user inputs of one graph, in order, with the label ranges of its losses."""

    def __init__(self, values: Sequence[ir.Value], labels: Sequence[LabelRange]) -> None:
        self.names = tuple(value.name for value in values)
        self.values = tuple(values)
        self.labels = tuple(label for label in labels if not label.observed)
        self._dtypes = tuple(
            None if value.elem_type is None else dtypes.NUMPY.get(value.elem_type)
            for value in values
        )
        # of the last arrays, which passed every check: the next ones mostly have their shapes
        self._places: tuple[_Place, ...] = ()
        self._feeds: dict[str, Fed] = {}

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Fed]:
        """Positional and keyword arguments as a feed, every one checked.

        Lists, tuples and numbers become arrays of the declared dtypes. Arrays of at most SMALL
        bytes are copied to memory that stays; the feed is good until the next call. Errors:
        TypeError (count, names, dtype, kind), ShapeMismatch (rank, width, batch), ValueError (an
        empty axis, a ragged list, a number too large), IndexError (a label outside its classes).
        """
        if kwargs or len(args) != len(self.names):
            args = self._named(args, kwargs)
        if not self._takes(args):
            if not _PLAIN.isdisjoint(map(type, args)):
                args = self._of_plain(args)
            self._check(args)
            self._keep(args)
        feeds = self._feeds
        for label in self.labels:
            check_labels(label, feeds[label.labels])
        return feeds

    def _takes(self, args: Sequence[Any]) -> bool:
        """Feeds plain arrays of the dtypes and shapes of the last ones; False for any other."""
        if not self._places:
            return False
        for fed, place in zip(args, self._places, strict=True):
            if type(fed) is not np.ndarray or fed.shape != place.shape or fed.dtype != place.dtype:
                return False
            if place.copy is None:
                self._feeds[place.name] = fed
            else:
                place.copy[...] = fed
        return True

    def _check(self, args: Sequence[Any]) -> None:
        symbols: dict[str, tuple[str, int]] = {}
        for value, dtype, fed in zip(self.values, self._dtypes, args, strict=True):
            _check(value, dtype, fed, symbols)

    def _of_plain(self, args: Sequence[Any]) -> list[Any]:
        return [
            _as_declared(value.name, dtype, fed) if type(fed) in _PLAIN else fed
            for value, dtype, fed in zip(self.values, self._dtypes, args, strict=True)
        ]

    def _keep(self, args: Sequence[Fed]) -> None:
        """Feeds these, and remembers what was seen of them unless there are OrtValues."""
        self._feeds = dict(zip(self.names, args, strict=True))
        places = []
        for name, fed in zip(self.names, args, strict=True):
            if isinstance(fed, np.ndarray):
                # no subclass: what is filled in later is plain
                copy = np.array(fed, order="C") if fed.nbytes <= SMALL else None
                places.append(_Place(name, fed.shape, fed.dtype, copy))
                self._feeds[name] = fed if copy is None else copy
        self._places = tuple(places) if len(places) == len(args) else ()

    def _named(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        feeds = dict(zip(self.names, args, strict=False))
        for name, value in kwargs.items():
            if name not in self.names:
                near = difflib.get_close_matches(name, self.names, n=1)
                hint = f"; did you mean '{near[0]}'?" if near else ""
                raise TypeError(f"no input '{name}'; inputs are {list(self.names)}{hint}")
            if name in feeds:
                raise TypeError(f"input '{name}' is given twice, by position and by name")
            feeds[name] = value
        missing = [name for name in self.names if name not in feeds]
        if missing or len(args) > len(self.names):
            raise TypeError(
                f"expected {len(self.names)} inputs {list(self.names)}, got {len(args)} by "
                f"position and {sorted(kwargs)} by name"
                + (f"; missing {missing}" if missing else "")
            )
        return [feeds[name] for name in self.names]


def _as_declared(name: str, dtype: np.dtype | None, fed: Any) -> Any:
    """A list, tuple or number as an array of ``dtype``; as it is where that is none of numbers."""
    if dtype is None or dtype.kind not in _FITTING:
        return fed
    if _holds_ortvalue(fed):
        raise TypeError(
            f"input '{name}': expected numbers in the {type(fed).__name__}, got an "
            "onnxruntime.OrtValue; feed one OrtValue for the whole input"
        )
    try:
        found = np.asarray(fed)
    except (ValueError, OverflowError) as error:
        kind = type(fed).__name__
        raise ValueError(f"input '{name}': the {kind} makes no array: {error}") from error
    if found.size and found.dtype.kind not in _FITTING[dtype.kind]:
        found = _of_large(name, dtype, found, fed)
    if found.size and found.dtype.kind not in _FITTING[dtype.kind]:
        raise TypeError(
            f"input '{name}': expected {dtype}, got a {type(fed).__name__} of {found.dtype}; "
            f"convert it with np.asarray(..., np.{dtype})"
        )
    with np.errstate(over="ignore"):
        array = found.astype(dtype)
    lost = np.isinf(array) & np.isfinite(found) if dtype.kind == "f" else array != found
    if lost.any():
        raise ValueError(f"input '{name}': {found[lost].flat[0]} does not fit in {dtype}")
    return array


def _holds_ortvalue(fed: Any, depth: int = 0) -> bool:
    """Whether one is among the items, which NumPy 2 would read as an array and 1.26 would not."""
    if type(fed) not in (list, tuple) or depth > _MOST_AXES:
        return False
    kinds = set(map(type, fed))
    if not kinds.isdisjoint(_ORT_VALUE):
        return True
    return not kinds.isdisjoint((list, tuple)) and any(_holds_ortvalue(f, depth + 1) for f in fed)


def _of_large(name: str, dtype: np.dtype, found: np.ndarray, fed: Any) -> np.ndarray:
    """Integers of which some have more than 63 bits: NumPy makes objects or float64 of them.

    As an array that ``dtype`` fits, ValueError for the first that it does not fit; ``found``
    where not all are numbers of its kind.
    """
    numbers = np.asarray(fed, object).reshape(-1).tolist()
    kinds = set(map(type, numbers))
    allowed = (int, np.integer) if dtype.kind in "iu" else (int, np.integer, float, np.floating)
    if dtype.kind == "b" or bool in kinds or not all(issubclass(k, allowed) for k in kinds):
        return found
    # Python's own numbers: they compare exactly, whatever their size
    numbers = [n.item() if isinstance(n, np.generic) else n for n in numbers]
    wide = np.dtype(np.float64) if dtype.kind == "f" else dtype
    largest = sys.float_info.max if dtype.kind == "f" else int(np.iinfo(dtype).max)
    least = -largest if dtype.kind == "f" else int(np.iinfo(dtype).min)
    for number in numbers:
        if isinstance(number, int) and not least <= number <= largest:
            bits = number.bit_length()
            shown = f"an integer of {bits} bits" if bits > _MOST_BITS else number
            raise ValueError(f"input '{name}': {shown} does not fit in {dtype}")
    return np.array(numbers, wide).reshape(found.shape)


def _check(
    value: ir.Value, dtype: np.dtype | None, fed: Any, symbols: dict[str, tuple[str, int]]
) -> None:
    if not isinstance(fed, np.ndarray):
        _check_ortvalue(value, fed, symbols)
        return
    if dtype is not None and fed.dtype != dtype:
        raise TypeError(
            f"input '{value.name}': expected {dtype}, got {fed.dtype}; convert it with "
            f".astype(np.{dtype})"
        )
    _check_shape(value, fed.shape, symbols)


def _check_ortvalue(value: ir.Value, fed: Any, symbols: dict[str, tuple[str, int]]) -> None:
    if not isinstance(fed, onnxruntime.OrtValue):
        kind = type(fed)
        raise TypeError(
            f"input '{value.name}': expected a NumPy array or an onnxruntime.OrtValue, got a "
            f"{kind.__module__}.{kind.__qualname__}; wrap it with np.asarray"
        )
    if not fed.is_tensor():
        raise TypeError(f"input '{value.name}': the OrtValue holds no tensor")
    if value.elem_type is not None and fed.element_type() != value.elem_type:
        raise TypeError(
            f"input '{value.name}': expected {dtypes.name_of(value.elem_type)}, got an OrtValue "
            f"of {dtypes.name_of(fed.element_type())}"
        )
    _check_shape(value, tuple(fed.shape()), symbols)


def check_shapes(values: Sequence[ir.Value], feeds: Mapping[str, np.ndarray]) -> None:
    """ShapeMismatch, ValueError where an array cannot be fed to the input of its name."""
    symbols: dict[str, tuple[str, int]] = {}
    for value in values:
        _check_shape(value, feeds[value.name].shape, symbols)


def _check_shape(
    value: ir.Value, shape: tuple[int, ...], symbols: dict[str, tuple[str, int]]
) -> None:
    dims = value.dims
    if dims is None:
        dims = (None,) * len(shape)
    if len(shape) != len(dims):
        raise ShapeMismatch(f"input '{value.name}': expected {_text(dims)}, got shape {shape}")
    for axis, (size, dim) in enumerate(zip(shape, dims, strict=True)):
        if size == 0:
            raise ValueError(f"input '{value.name}': axis {axis} of shape {shape} is empty")
        if isinstance(dim, int):
            if size != dim and dim >= 0:  # exporters also write -1 for an unknown size
                raise ShapeMismatch(
                    f"input '{value.name}': expected {_text(dims)}, got shape {shape}"
                )
        elif dim:
            other, known = symbols.setdefault(dim, (value.name, size))
            if known != size:
                raise ShapeMismatch(
                    f"inputs '{other}' and '{value.name}' disagree on '{dim}': {known} and {size}"
                )


def _text(dims: Sequence[ir.Dim]) -> str:
    return "shape (" + ", ".join("?" if dim is None else str(dim) for dim in dims) + ")"


def check_labels(label: LabelRange, fed: Fed) -> None:
    """IndexError with the value and the classes when a label is outside its range."""
    values = as_array(fed)
    classes, ignored = label.classes, label.ignore_index
    if classes is None or _within(values, classes):
        return
    bad = (values < 0) | (values >= classes)
    if ignored is not None:
        bad &= values != ignored
    if bad.any():
        raise IndexError(label_text(label.labels, int(values[bad].flat[0]), classes, ignored))


def _within(values: np.ndarray, classes: int) -> bool:
    if values.size <= 16:  # quicker than a reduction
        few = values.reshape(-1).tolist()
        return bool(min(few) >= 0 and max(few) < classes)
    # a negative number read as unsigned is larger than any class count: one pass for both ends
    return bool(values.view(f"u{values.itemsize}").max() < classes)


def as_array(value: Fed) -> np.ndarray:
    """An array or the values of an OrtValue."""
    return value if isinstance(value, np.ndarray) else value.numpy()


def as_ortvalue(value: Fed) -> onnxruntime.OrtValue:
    """An OrtValue that owns its memory.

    One made by ortvalue_from_numpy only borrows the array's: what ``.numpy()`` gives of it reads
    freed memory once the OrtValue is gone.
    """
    if not isinstance(value, np.ndarray):
        return value
    owner = onnxruntime.OrtValue.ortvalue_from_shape_and_type(value.shape, value.dtype.type, "cpu")
    owner.update_inplace(value)
    return owner


def returned(outputs: Sequence[Fed], feeds: Mapping[str, Fed]) -> Fed | tuple[Fed, ...]:
    """The outputs as OrtValues if every input is one, else as arrays; a single one comes alone."""
    convert = as_ortvalue if _ORT_VALUE.issuperset(map(type, feeds.values())) else as_array
    if len(outputs) == 1:
        return convert(outputs[0])
    return tuple([convert(output) for output in outputs])


def label_text(name: str, value: int, classes: int, ignored: int | None) -> str:
    """The message about a label outside [0, classes)."""
    except_for = "" if ignored is None else f" or the ignore_index {ignored}"
    return f"label {value} in '{name}' is outside 0..{classes - 1} ({classes} classes){except_for}"
