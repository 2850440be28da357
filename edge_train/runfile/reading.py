"""From TOML to Options: unknown keys, wrong types and values are named with their place."""

from __future__ import annotations

import dataclasses
import difflib
import sys
import types
import typing
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from edge_train.errors import EdgeTrainError
from edge_train.runfile.options import Options

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

T = TypeVar("T")

_WORDS = {
    int: "a whole number",
    float: "a number",
    str: "a text in quotes",
    bool: "true or false",
    Path: "a path in quotes",
    dict: "a table",
}


class RunFileError(EdgeTrainError, ValueError):
    """A run file or a flag is wrong; the text names the key."""


def read(path: Path | None, overrides: Sequence[tuple[str, Any]] = ()) -> Options:
    """The options of the run file at ``path`` (None: the defaults), ``overrides`` put over them.

    An override is (dotted key, value), as TOML would give the value. Paths of the file are taken
    relative to it, those of overrides as they are. RunFileError names the key; OSError for a
    missing file.
    """
    where = "the command line" if path is None else f"'{path}'"
    table = {} if path is None else _table(path)
    base = Path() if path is None else path.parent
    options = _section(Options, table, where, "", base)
    for key, value in overrides:
        options = _overridden(options, key.split("."), value, key)
    return options


def _table(path: Path) -> dict[str, Any]:
    if path.is_dir():
        raise RunFileError(f"'{path}' is a folder, expected a run file (RUN.toml)")
    try:
        table: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except UnicodeDecodeError as error:
        raise RunFileError(f"'{path}' is no text in UTF-8: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise RunFileError(f"'{path}' is no TOML: {error}") from error
    return table


class Word(str):
    """What was said on the command line and is no TOML: a text, or .5 where a number is wanted."""

    __slots__ = ()


def parse_value(text: str) -> Any:
    """The value of a flag, in TOML's words; anything that is none is a Word."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return Word(text)


def section(cls: type[T], table: object, where: str) -> T:
    """The dataclass ``cls`` of a table at the place ``where``; RunFileError names the key."""
    return _section(cls, table, where, "", Path())


def _section(cls: type[T], table: object, where: str, name: str, base: Path) -> T:
    if not isinstance(table, Mapping):
        raise RunFileError(f"{where}: '{name}' is a section, write [{name}]")
    fields = _fields(cls)
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in fields:
            raise RunFileError(f"{where}: {_unknown(key, list(fields), name)}")
        full = f"{name}.{key}" if name else key
        kind = fields[key]
        if dataclasses.is_dataclass(kind) and isinstance(kind, type):
            values[key] = _section(kind, value, where, full, base)
        else:
            values[key] = _value(kind, value, where, full, base)
    return _made(cls, values, where, name)


def _made(cls: type[T], values: Mapping[str, Any], where: str, name: str) -> T:
    try:
        return cls(**values)
    except ValueError as error:  # what the section itself checks names its field first
        raise RunFileError(f"{where}: {name}.{error}" if name else f"{where}: {error}") from error


def _fields(cls: Any) -> dict[str, Any]:
    kinds = typing.get_type_hints(cls)
    return {field.name: kinds[field.name] for field in dataclasses.fields(cls)}


def _unknown(key: str, known: list[str], section: str) -> str:
    near = difflib.get_close_matches(key, known, n=1)
    hint = f"did you mean '{near[0]}'?" if near else f"known are {', '.join(known)}"
    return f"there is no key '{key}'{f' in [{section}]' if section else ''}; {hint}"


def _overridden(options: Any, keys: list[str], value: Any, full: str) -> Any:
    where = "the command line"
    fields = _fields(type(options))
    key, *rest = keys
    if key not in fields:
        section = full.rpartition(".")[0] if not rest else ""
        raise RunFileError(f"{where}: {_unknown(key, list(fields), section)}")
    kind = fields[key]
    if dataclasses.is_dataclass(kind):
        if not rest:
            raise RunFileError(f"{where}: '{full}' is a section; give one of its keys: {full}.KEY")
        inner = _overridden(getattr(options, key), rest, value, full)
        return dataclasses.replace(options, **{key: inner})
    if rest and typing.get_origin(kind) is dict:  # data.scale.pixels=0.1
        table = {**getattr(options, key), ".".join(rest): value}
        return dataclasses.replace(options, **{key: _value(kind, table, where, full, Path())})
    if rest:
        raise RunFileError(f"{where}: '{full}': '{key}' has no keys of its own")
    changed = {f.name: getattr(options, f.name) for f in dataclasses.fields(options)}
    changed[key] = _value(kind, value, where, full, Path())
    return _made(type(options), changed, where, full.rpartition(".")[0])


def _value(kind: Any, value: Any, where: str, name: str, base: Path) -> Any:
    for choice in _choices(kind):
        fitted = _fitted(choice, value, base)
        if fitted is not None:
            return fitted[0]
    wanted = " or ".join(_words(choice) for choice in _choices(kind))
    shown = (
        {True: "true", False: "false"}.get(value, repr(value))
        if isinstance(value, bool)
        else repr(value)
    )
    raise RunFileError(f"{where}: {name}: expected {wanted}, got {shown}")


def _choices(kind: Any) -> list[Any]:
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return [choice for choice in typing.get_args(kind) if choice is not type(None)]
    return [kind]


def _words(kind: Any) -> str:
    origin = typing.get_origin(kind)
    if origin is tuple:
        return f"a list, each {_words(typing.get_args(kind)[0])}"
    return _WORDS[origin or kind]


def _fitted(kind: Any, value: Any, base: Path) -> tuple[Any] | None:
    """The value as ``kind``, or None where it is of another type."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if isinstance(value, Word):
        value = _number(args[0] if origin is tuple else kind, value)
    if origin is tuple:
        if not isinstance(value, list):
            return None
        items = [_fitted(args[0], item, base) for item in value]
        return (tuple([item[0] for item in items if item]),) if all(items) else None
    if origin is dict:
        if not isinstance(value, Mapping):
            return None
        items = [_fitted(args[1], item, base) for item in value.values()]
        whole = dict(zip(value, [item[0] for item in items if item], strict=False))
        return (whole,) if all(items) else None
    if kind is Any:
        return (value,)
    if kind is Path:
        return (base / Path(value).expanduser(),) if isinstance(value, str) and value else None
    if kind is float:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return (float(value),) if is_number else None
    if isinstance(value, bool) and kind is not bool:
        return None
    return (value,) if isinstance(value, kind) else None


def _number(kind: Any, word: Word) -> Any:
    """The number that Python reads in a word (.5, 1., 01; a list of them), else the word."""
    if kind not in (int, float):
        return word
    if word.startswith("[") and word.endswith("]"):
        return [
            _number(kind, item) if isinstance(item, Word) else item
            for item in (parse_value(text.strip()) for text in word[1:-1].split(","))
        ]
    for read_as in (int, float):
        with suppress(ValueError):
            return read_as(word)
    return word
