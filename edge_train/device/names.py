"""Names of devices: "cpu", "cpu:huge,lock", "file:PATH", "shm:NAME", "opencl:N"."""

from __future__ import annotations

import re
from dataclasses import dataclass

KINDS = ("cpu", "file", "shm", "opencl")
_SHARED = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_CPU_OPTIONS = ("huge", "lock")


@dataclass(frozen=True)
class DeviceName:
    """A name taken apart: the kind, and what follows the first colon ("" if nothing does).

    Of two names for one device ``parse`` makes the same: "opencl" is "opencl:0", "cpu:0" is "cpu".
    """

    kind: str
    argument: str = ""

    def __str__(self) -> str:
        return f"{self.kind}:{self.argument}" if self.argument else self.kind

    @property
    def index(self) -> int:
        """The device's number, for kinds that count."""
        return int(self.argument)

    @property
    def options(self) -> frozenset[str]:
        """The options of "cpu"."""
        return frozenset(filter(None, self.argument.split(",")))


def parse(name: object) -> DeviceName:
    """The parts of a device's name.

    Errors: TypeError for anything but a str, ValueError for a name that is none, or for "cuda".
    """
    if not isinstance(name, str):
        raise TypeError(f"device: expected a str or a Device, got {type(name).__name__}")
    kind, _, argument = name.partition(":")
    if kind == "cuda":
        raise ValueError(
            f"device '{name}': CUDA is not part of edge_train yet; use 'cpu', 'file:PATH', "
            "'shm:NAME' or 'opencl:N'"
        )
    if kind not in KINDS:
        raise ValueError(f"device '{name}': expected 'cpu', 'file:PATH', 'shm:NAME' or 'opencl:N'")
    if kind == "cpu":
        argument = ",".join(sorted({*argument.split(",")} - {"", "0"}))
    elif kind == "opencl":
        argument = argument.lstrip("0") or "0"
    parsed = DeviceName(kind, argument)
    _check(name, parsed)
    return parsed


def _check(name: str, parsed: DeviceName) -> None:
    argument = parsed.argument
    if parsed.kind == "cpu":
        unknown = sorted(parsed.options - set(_CPU_OPTIONS))
        if unknown:
            raise ValueError(
                f"device '{name}': unknown options {unknown}; there are 'huge', 'lock'"
            )
    elif parsed.kind == "shm" and not _SHARED.fullmatch(argument):
        raise ValueError(
            f"device '{name}': a shared name has 1 to 64 letters, digits or any of '_.-', and "
            "begins with none of '.-'"
        )
    elif parsed.kind == "opencl" and not re.fullmatch(r"[0-9]{1,3}", argument):
        raise ValueError(f"device '{name}': expected a number, as in 'opencl:0'")
