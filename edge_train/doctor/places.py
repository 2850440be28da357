"""Folders that can be written, files of /proc and /sys that can be read, sensors."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from edge_train.doctor.check import Check, bad, good, info, warn
from edge_train.doctor.host import Host
from edge_train.sensors import Sensors, throttle_text

#: file -> what is lost without it
_FILES = {
    "proc/meminfo": "limits of memory",
    "proc/self/status": "the memory of the run in the progress line",
    "proc/pressure/memory": "the limit of memory pressure",
    "sys/class/thermal": "temperature limits",
    "sys/class/power_supply": "battery limits",
    "sys/devices/system/cpu/possible": "onnxruntime's own count of processors",
}
_LITTLE_SPACE = 50 * 2**20


def checks(host: Host) -> Iterator[Check]:
    """The folders first: a run that cannot save is no use."""
    for name, folder, needed in _folders(host):
        yield _folder(name, folder, needed)
    yield _closed(host)
    yield from _sensors(host)


def _folders(host: Host) -> Iterator[tuple[str, Path, bool]]:
    yield "this folder", Path.cwd(), False
    yield from ((f"folder {_home(folder)}", folder, True) for folder in host.folders)
    try:
        yield "temporary files", Path(tempfile.gettempdir()), False
    except OSError as error:
        yield f"temporary files ({error})", Path(os.devnull), False


def _folder(name: str, folder: Path, needed: bool) -> Check:
    try:
        lacks = _exercise(folder)
        free = shutil.disk_usage(folder).free
    except OSError as error:
        words = f"{_home(folder)} cannot be written: {error.strerror or error}"
        make = bad if needed else warn
        return make(name, words, "give runs a folder that can: edge-train doctor --folder DIR")
    words = f"{_home(folder)}, {free / 2**20:.0f} MB free"
    if lacks:
        words += f"; no {', no '.join(lacks)} (edge_train does without)"
    if free < _LITTLE_SPACE:
        return warn(name, words, "make room: a checkpoint with moments has 3 times the weights")
    return good(name, words)


def _exercise(folder: Path) -> list[str]:
    """Writes, replaces and removes a file as a save does; what the file system lacks."""
    first, second = (folder / f".edge-train-{secrets.token_hex(6)}.tmp" for _ in range(2))
    lacks = []
    try:
        for path in (first, second):
            with open(path, "xb") as file:
                file.write(b"x")
                file.flush()
                os.fsync(file.fileno())
        os.replace(second, first)
        try:
            os.link(first, second)
        except OSError:
            lacks.append("hard links")
        try:
            os.chmod(first, 0o600)
        except OSError:
            lacks.append("chmod")
    finally:
        for path in (first, second):
            with suppress(OSError):
                path.unlink()
    return lacks


def _closed(host: Host) -> Check:
    closed = []
    for path, lost in _FILES.items():
        place = host.root / path
        try:
            if place.is_dir():
                next(place.iterdir(), None)
            else:
                place.read_bytes()
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            closed.append(f"/{path} ({why}), for {lost}")
    if not closed:
        return good("/proc and /sys", "readable")
    return info("/proc and /sys", f"not readable: {'; '.join(closed)}")


def _sensors(host: Host) -> Iterator[Check]:
    sensors = Sensors(host.root, host.environ.get("PATH"))
    heat = sensors.temperature()
    if heat is None:
        yield info("temperature", f"unknown ({sensors.missing['temperature']})")
    else:
        make = warn if heat >= 80 else info
        yield make("temperature", f"{heat:.1f} °C")
    bits = sensors.throttled()
    if bits is not None:
        yield _throttle(bits)
    battery = sensors.battery()
    if battery is not None:
        percent = "?" if battery.percent is None else f"{battery.percent:g}"
        yield info("battery", f"{percent} %, {'plugged in' if battery.plugged else 'discharging'}")


def _throttle(bits: int) -> Check:
    now, before = throttle_text(bits), throttle_text(bits >> 16)
    if not bits:
        return good("throttling", "never since boot")
    words = f"now: {now or 'none'}; since boot: {before or 'none'} (0x{bits:x})"
    if bits & 1 or bits >> 16 & 1:
        return warn("throttling", words, "the power supply is too weak: it halves the clock")
    return warn("throttling", words, "the board is too hot: give it a heat sink or a fan")


def _home(path: Path) -> str:
    """A path as people may paste it: without the name of the user."""
    with suppress(RuntimeError, ValueError):
        return str("~" / path.relative_to(Path.home()))
    return str(path)
