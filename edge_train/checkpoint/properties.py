"""The user's properties of a checkpoint state: int64, float32 and string values by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from edge_train.checkpoint.format import Property
from edge_train.checkpoint.parameter import unknown_name

#: names that begin so belong to this package and are kept apart from the user's
RESERVED = "edge_train."


class Properties:
    """A mapping from names to values; iteration yields (name, value) in the order of the names.

    A value reads back as a reload would give it: a float has float32 precision (the file's), bool
    and NumPy integers become int, NumPy floats become float, bytes become str. A NumPy array
    without dimensions, as a loss is, counts as its number.
    """

    def __init__(self, stored: Mapping[str, Property] | None = None) -> None:
        self._values: dict[str, Property] = dict(stored or {})

    def __getitem__(self, name: str) -> Property:
        """The value; KeyError with the nearest names."""
        self._require(name)
        return self._values[name]

    def __setitem__(self, name: str, value: Property | bytes | np.generic | np.ndarray) -> None:
        """Add or replace; TypeError for another type, OverflowError for a number too large."""
        if not isinstance(name, str):
            raise TypeError(f"a property name is a str, got {type(name).__name__}")
        _require_utf8(name, name)
        if name.startswith(RESERVED):
            raise ValueError(f"property '{name}': names that begin with '{RESERVED}' are reserved")
        self._values[name] = _stored(name, value)

    def __delitem__(self, name: str) -> None:
        """Remove; KeyError if there is none."""
        self._require(name)
        del self._values[name]

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def __iter__(self) -> Iterator[tuple[str, Property]]:
        return iter(sorted(self._values.items()))

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Properties({dict(self)})"

    def _require(self, name: str) -> None:
        if name not in self._values:
            raise unknown_name("property", name, sorted(self._values))


def _stored(name: str, value: object) -> Property:
    """The value as the file holds it."""
    if isinstance(value, np.ndarray) and value.ndim == 0 and value.dtype.kind in "biuf":
        value = value[()]
    if isinstance(value, (int, np.integer, np.bool_)):
        return _int64(name, int(value))
    if isinstance(value, (float, np.floating)):
        return _float32(name, float(value))
    if isinstance(value, (bytes, bytearray)):
        try:
            return bytes(value).decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"property '{name}': bytes that are not UTF-8 ({error})") from error
    if isinstance(value, str):
        _require_utf8(name, value)
        return str.__str__(value)
    kind = type(value).__name__
    shape = f" of shape {value.shape}" if isinstance(value, np.ndarray) and value.ndim else ""
    raise TypeError(f"property '{name}' takes int, float or str, got {kind}{shape}")


def _int64(name: str, value: int) -> int:
    if not -(2**63) <= value < 2**63:
        raise OverflowError(
            f"property '{name}': {value} does not fit in int64; store it as str, or as float and "
            "lose digits"
        )
    return value


def _float32(name: str, value: float) -> float:
    with np.errstate(over="ignore", under="ignore"):
        rounded = float(np.float32(value))
    if np.isinf(rounded) and not np.isinf(value):
        raise OverflowError(
            f"property '{name}': {value} does not fit in float32, which the file stores; use str"
        )
    return rounded


def _require_utf8(name: str, text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"property {name!a}: text that UTF-8 cannot hold ({error})") from error
