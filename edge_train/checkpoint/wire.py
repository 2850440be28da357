"""FlatBuffers tables read with every offset, length and count checked before it is used.

The ``flatbuffers`` package reads without bounds checks, so this reader is our own. It never
allocates more than a few times the file's size: tables and bytes are counted against budgets,
because hostile offsets may point at one object many times over.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NoReturn

from edge_train.checkpoint.source import Source, Span
from edge_train.errors import CheckpointCorrupt

MAX_TABLES = 1_000_000  # the limit of the FlatBuffers verifier
# an object in memory is larger than in the file: so many may be had, further ones need more bytes
_FREE_OBJECTS, _BYTES_AN_OBJECT = 49_152, 24
_TABLE, _STRING = 4, 1  # what counts as how many objects
MAX_FILE = 2**31 - 1  # offsets reach no further in a valid buffer
_SHARING = 4  # bytes may be referred to this many times on average (shared strings are legal)

_U16 = struct.Struct("<H")
_U32 = struct.Struct("<I")
_I32 = struct.Struct("<i")
BOOL, INT32, INT64, FLOAT32 = (struct.Struct(code) for code in ("<B", "<i", "<q", "<f"))


class Reader:
    """The buffer as a whole: bounds, budgets and error texts."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.size = source.size
        self._objects_left = min(_TABLE * MAX_TABLES, _FREE_OBJECTS + self.size // _BYTES_AN_OBJECT)
        self._bytes_left = _SHARING * self.size

    def fail(self, offset: int, what: str) -> NoReturn:
        """CheckpointCorrupt: file, byte offset, ``what`` (what is wrong), what to do."""
        raise CheckpointCorrupt(
            f"checkpoint {self.source.label} is damaged at byte {offset}: {what}; use another copy"
        )

    def need(self, offset: int, count: int, what: str) -> None:
        """Raise unless the bytes ``[offset, offset + count)`` exist."""
        end = offset + count
        if offset >= 0 and end <= self.size:
            return
        if self.size < end <= MAX_FILE:
            raise CheckpointCorrupt(
                f"checkpoint {self.source.label} is truncated: {self.size} of at least {end} bytes "
                f"({what} at byte {offset} takes {count}); copy the whole file again"
            )
        self.fail(offset, f"{what} points {count} bytes out of a file of {self.size}")

    def unpack(self, form: struct.Struct, offset: int, what: str) -> int | float:
        """One scalar at ``offset``."""
        self.need(offset, form.size, what)
        value: int | float = form.unpack(self.source.read(offset, form.size))[0]
        return value

    def spend(self, offset: int, count: int, what: str) -> None:
        """Count ``count`` bytes against the budget."""
        self._bytes_left -= count
        if self._bytes_left < 0:
            self.fail(offset, f"{what} and others before it share the same bytes too often")

    def count(self, offset: int, objects: int, what: str) -> None:
        """Count objects that stay in memory against the budget."""
        self._objects_left -= objects
        if self._objects_left < 0:
            self.fail(offset, f"more tables than a file of {self.size} bytes can need ({what})")

    def table(self, offset: int, what: str, objects: int = _TABLE) -> Table:
        """The table at ``offset`` with its vtable checked; it counts as ``objects``."""
        self.count(offset, objects, what)
        vtable = offset - int(self.unpack(_I32, offset, what))
        if vtable < 0:
            self.fail(offset, f"the vtable of {what} lies before the file")
        length = int(self.unpack(_U16, vtable, f"the vtable of {what}"))
        if length < 4 or length % 2:
            self.fail(vtable, f"the vtable of {what} has {length} bytes, expected an even count")
        self.need(vtable, length, f"the vtable of {what}")
        entries = struct.unpack(f"<{length // 2}H", self.source.read(vtable, length))
        return Table(self, offset, entries[2:], what)


class Table:
    """One table; a slot that is absent yields the default or None."""

    def __init__(self, reader: Reader, offset: int, entries: tuple[int, ...], what: str) -> None:
        self.reader = reader
        self.offset = offset
        self.what = what
        self._entries = entries

    def _place(self, slot: int) -> int | None:
        entry = self._entries[slot] if slot < len(self._entries) else 0
        if 0 < entry < 4:
            self.reader.fail(self.offset, f"field {slot} of {self.what} overlaps the table's head")
        return self.offset + entry if entry else None

    def scalar(self, slot: int, form: struct.Struct, default: int) -> int | float:
        """A number, or ``default`` if the slot is absent."""
        place = self._place(slot)
        return default if place is None else self.reader.unpack(form, place, self.what)

    def integer(self, slot: int, form: struct.Struct, default: int = 0) -> int:
        """An integer, or ``default``."""
        return int(self.scalar(slot, form, default))

    def _vector(self, slot: int, width: int, field: str) -> tuple[int, int] | None:
        """Start and element count of a vector whose bytes are all inside the file."""
        place = self._place(slot)
        return None if place is None else self._vector_at(place, width, field)

    def _vector_at(self, place: int, width: int, field: str) -> tuple[int, int]:
        what = f"{field} of {self.what}"
        start = place + int(self.reader.unpack(_U32, place, what))
        count = int(self.reader.unpack(_U32, start, what))
        self.reader.need(start + 4, count * width, what)
        self.reader.spend(start, count * width, what)
        return start + 4, count

    def text(self, slot: int, field: str) -> str | None:
        """A UTF-8 string."""
        place = self._place(slot)
        return None if place is None else self._text_at(place, field)

    def _text_at(self, place: int, field: str) -> str:
        start, count = self._vector_at(place, 1, field)
        self.reader.need(start, count + 1, f"{field} of {self.what}")
        data = self.reader.source.read(start, count + 1)
        if data[-1]:
            self.reader.fail(start, f"{field} of {self.what} is not terminated")
        try:
            return data[:-1].decode("utf-8")
        except UnicodeDecodeError as error:
            self.reader.fail(start + error.start, f"{field} of {self.what} is not UTF-8")

    def texts(self, slot: int, field: str) -> tuple[str, ...] | None:
        """A vector of UTF-8 strings; each counts as a table."""
        found = self._vector(slot, 4, field)
        if found is None:
            return None
        start, count = found
        self.reader.count(start, count * _STRING, f"{field} of {self.what}")
        return tuple(self._text_at(start + 4 * i, f"{field}[{i}]") for i in range(count))

    def span(self, slot: int, field: str) -> Span | None:
        """A byte vector, not read."""
        found = self._vector(slot, 1, field)
        return None if found is None else Span(self.reader.source, *found)

    def int64s(self, slot: int, field: str, limit: int) -> tuple[int, ...] | None:
        """A vector of at most ``limit`` int64."""
        found = self._vector(slot, 8, field)
        if found is None:
            return None
        start, count = found
        if count > limit:
            self.reader.fail(start, f"{field} of {self.what} has {count} items, at most {limit}")
        return struct.unpack(f"<{count}q", self.reader.source.read(start, 8 * count))

    def tables(self, slot: int, field: str, objects: int = _TABLE) -> Iterator[Table] | None:
        """A vector of tables, one after the other, each counted as ``objects``."""
        found = self._vector(slot, 4, field)
        return None if found is None else self._entries_of(*found, field, objects)

    def _entries_of(self, start: int, count: int, field: str, objects: int) -> Iterator[Table]:
        for index in range(count):
            place = start + 4 * index
            what = f"{field}[{index}]"
            target = place + int(self.reader.unpack(_U32, place, what))
            yield self.reader.table(target, what, objects)

    def table(self, slot: int, field: str) -> Table | None:
        """A table."""
        place = self._place(slot)
        if place is None:
            return None
        return self.reader.table(place + int(self.reader.unpack(_U32, place, field)), field)
