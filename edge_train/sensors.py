"""What the machine says of itself: heat, throttling, battery, memory, wireless network.

Every source is optional. A reader answers None where it is missing or forbidden (Android closes
much of /proc and /sys) and keeps the reason in ``Sensors.missing``; nothing is raised.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

#: a command that hangs (Termux:API without its app does) must not hold up the training
_COMMAND_SECONDS = 5.0
#: seconds for which an answer of Termux:API, or its failure, is kept: each call starts processes
_ANSWER_KEPT, _FAILURE_KEPT = 60.0, 600.0
#: thermal zones of the processor, on Raspberry Pi, x86, Qualcomm, Exynos, MediaTek and Rockchip
_CPU_ZONES = ("cpu", "soc", "tsens", "x86_pkg", "mtktscpu", "big", "little", "bcm")
_CPU_CHIPS = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "soc_thermal")
_FIRMWARE = "sys/devices/platform/soc/soc:firmware/get_throttled"
#: bits of the Raspberry Pi's get_throttled: now, and shifted by 16 since boot
THROTTLE_BITS = {0: "under-voltage", 1: "frequency capped", 2: "throttled", 3: "soft heat limit"}


@dataclass(frozen=True)
class Battery:
    """``percent`` in 0..100, whether power comes in, °C where it is told."""

    percent: float | None
    plugged: bool | None
    temperature: float | None = None


@dataclass(frozen=True)
class Readings:
    """One look: °C, throttle bits, battery, bytes available, PSI "some avg10" in %, wireless up."""

    temperature: float | None = None
    throttled: int | None = None
    battery: Battery | None = None
    memory: int | None = None
    pressure: float | None = None
    wifi: bool | None = None


def throttle_text(bits: int) -> str:
    """The words for the bits that are set now; "" for none."""
    return ", ".join(text for bit, text in THROTTLE_BITS.items() if bits >> bit & 1)


@dataclass
class Sensors:
    """Readers below ``root``; ``path`` is the PATH where commands are looked for (None: ours)."""

    root: Path = Path("/")
    path: str | None = None
    missing: dict[str, str] = field(default_factory=dict)
    _tried: dict[str, list[str]] = field(default_factory=dict, repr=False)
    _kept: dict[str, tuple[float, dict[str, Any] | None]] = field(default_factory=dict, repr=False)
    _by_file: frozenset[str] = field(default_factory=frozenset, repr=False)

    def read(self, names: frozenset[str], by_file: frozenset[str] = frozenset()) -> Readings:
        """The named fields of Readings; all others stay None.

        For those of ``by_file`` no command of Termux:API is started: Android ends apps that have
        many processes.
        """
        self._by_file = by_file
        found = Readings(**{name: getattr(self, name)() for name in sorted(names)})
        self._by_file = frozenset()
        return found

    def temperature(self) -> float | None:
        """The hottest processor zone in °C; where none is told, vcgencmd's or the battery's."""
        named = list(self._zones()) or list(self._chips())
        found = [value for name, value in named if _is_cpu(name)] or [v for _, v in named]
        if not found:
            found = [value for value in (self._vcgencmd_temperature(),) if value is not None]
        if not found:
            battery = self._termux_battery("temperature")
            found = [battery.temperature] if battery and battery.temperature is not None else []
        return self._told("temperature", max(found, default=None))

    def throttled(self) -> int | None:
        """The Raspberry Pi's throttle bits (``vcgencmd get_throttled``)."""
        text = self._text(_FIRMWARE)
        if text is None:
            text = self._run("throttled", "vcgencmd", "get_throttled")
        if text is None:
            return self._told("throttled", None)
        try:
            return self._told("throttled", int(text.strip().rpartition("=")[2], 16))
        except ValueError:
            self._refuse("throttled", f"get_throttled says {text.strip()[:60]!r}")
            return self._told("throttled", None)

    def battery(self) -> Battery | None:
        """The battery of /sys/class/power_supply, else of termux-battery-status."""
        found = self._supplies() or self._termux_battery("battery")
        return self._told("battery", found)

    def memory(self) -> int | None:
        """MemAvailable in bytes."""
        text = self._text("proc/meminfo", "memory") or ""
        for line in text.splitlines():
            name, _, value = line.partition(":")
            if name == "MemAvailable" and value.split()[:1]:
                return self._told("memory", int(_number(value.split()[0], 0) * 1024))
        return self._told("memory", None)

    def pressure(self) -> float | None:
        """The share of the last 10 s in which some task waited for memory, in %."""
        text = self._text("proc/pressure/memory", "pressure") or ""
        for line in text.splitlines():
            words = dict(word.partition("=")[::2] for word in line.split()[1:])
            if line.startswith("some") and "avg10" in words:
                return self._told("pressure", _number(words["avg10"]))
        return self._told("pressure", None)

    def wifi(self) -> bool | None:
        """Whether a wireless interface is up, by /sys or termux-wifi-connectioninfo."""
        links = [path.parent for path in self._glob("sys/class/net/*/wireless", "wifi")]
        states = [self._text(link / "operstate") for link in links]
        known = [state.strip() == "up" for state in states if state is not None]
        if known:
            return self._told("wifi", any(known))
        told = self._json("wifi", "termux-wifi-connectioninfo")
        up = None if told is None else told.get("supplicant_state") == "COMPLETED"
        return self._told("wifi", up)

    # ---- the sources -----------------------------------------------------------------------

    def _zones(self) -> Iterator[tuple[str, float]]:
        for zone in self._glob("sys/class/thermal/thermal_zone*", "temperature"):
            name = self._text(zone / "type") or ""
            yield from _celsius(name, self._text(zone / "temp", "temperature"))

    def _chips(self) -> Iterator[tuple[str, float]]:
        for chip in self._glob("sys/class/hwmon/hwmon*", "temperature"):
            name = self._text(chip / "name") or ""
            for sensor in self._glob(chip / "temp*_input", "temperature"):
                yield from _celsius(name.strip(), self._text(sensor, "temperature"))

    def _vcgencmd_temperature(self) -> float | None:
        if not self._has("vcgencmd"):
            return None
        text = self._run("temperature", "vcgencmd", "measure_temp")  # temp=48.3'C
        value = _number((text or "").strip().removeprefix("temp=").split("'")[0])
        return None if math.isnan(value) else value

    def _supplies(self) -> Battery | None:
        percents: list[float] = []
        plugged: list[bool] = []
        for supply in self._glob("sys/class/power_supply/*", "battery"):
            kind = (self._text(supply / "type", "battery") or "").strip()
            if (self._text(supply / "scope") or "").strip() == "Device":
                continue  # a mouse has a battery too
            if kind == "Battery":
                percents.append(_number(self._text(supply / "capacity", "battery")))
                state = (self._text(supply / "status") or "").strip()
                plugged += [state != "Discharging"] if state not in ("", "Unknown") else []
            elif kind:
                plugged += [_number(self._text(supply / "online"), 0) > 0]
        known = [percent for percent in percents if not math.isnan(percent)]
        return Battery(min(known), any(plugged) if plugged else None) if known else None

    def _termux_battery(self, name: str) -> Battery | None:
        told = self._json(name, "termux-battery-status")
        if told is None:
            return None
        percent, heat = _number(told.get("percentage")), _number(told.get("temperature"))
        plug = told.get("plugged")
        return Battery(
            None if math.isnan(percent) else percent,
            plug != "UNPLUGGED" if isinstance(plug, str) else None,
            None if math.isnan(heat) else heat,
        )

    # ---- files and commands ----------------------------------------------------------------

    def _told(self, name: str, value: T | None) -> T | None:
        tried = self._tried.pop(name, [])
        if value is None:
            self.missing[name] = "; ".join(tried) or "no source on this machine"
        else:
            self.missing.pop(name, None)
        return value

    def _refuse(self, name: str, why: str) -> None:
        tried = self._tried.setdefault(name, [])
        if why not in tried:
            tried.append(why)

    def _text(self, path: str | Path, name: str | None = None) -> str | None:
        """A small file's text; with ``name`` the reason of a failure is kept under it."""
        try:
            return (self.root / path).read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            if name is not None:
                self._refuse(name, f"{self.root / path}: {error.strerror or error}")
            return None

    def _glob(self, pattern: str | Path, name: str) -> list[Path]:
        whole = self.root / pattern
        fixed = next(part for part in whole.parents if "*" not in str(part))
        try:
            next(fixed.iterdir(), None)  # glob hides a folder that may not be listed
        except OSError as error:
            self._refuse(name, f"{fixed}: {error.strerror or error}")
            return []
        return sorted(fixed.glob(str(whole.relative_to(fixed))))

    def _has(self, command: str) -> bool:
        return shutil.which(command, path=self.path) is not None

    def _run(self, name: str, command: str, *words: str) -> str | None:
        program = shutil.which(command, path=self.path)
        if program is None:
            self._refuse(name, f"no command {command}")
            return None
        try:
            return _answer([program, *words])
        except (OSError, subprocess.SubprocessError) as error:
            self._refuse(name, f"{command}: {error}")
            return None

    def _json(self, name: str, command: str) -> dict[str, Any] | None:
        """What a command of Termux:API says; kept for a while."""
        if name in self._by_file:
            return None
        until, told = self._kept.get(command, (0.0, None))
        if time.monotonic() >= until:
            told = self._ask(name, command)
            rest = _FAILURE_KEPT if told is None else _ANSWER_KEPT
            self._kept[command] = (time.monotonic() + rest, told)
        return told

    def _ask(self, name: str, command: str) -> dict[str, Any] | None:
        text = self._run(name, command)
        if text is None:
            return None
        try:
            told = json.loads(text)
        except (ValueError, RecursionError):
            told = None
        if not isinstance(told, dict):
            self._refuse(name, f"{command} says {text.strip()[:60]!r}")
            return None
        return told


def _answer(words: list[str]) -> str:
    """What a command prints; OSError, SubprocessError where it fails or hangs."""
    with subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            out, _ = process.communicate(timeout=_COMMAND_SECONDS)
        except BaseException:
            with suppress(OSError):  # the helpers of a script hold the pipe: end them too
                os.killpg(process.pid, signal.SIGKILL)
            raise
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, words[0])
    return out


def _is_cpu(name: str) -> bool:
    return any(word in name.lower() for word in (*_CPU_ZONES, *_CPU_CHIPS))


def _celsius(name: str, text: str | None) -> Iterator[tuple[str, float]]:
    """Thousandths of a degree; zones that are off tell 0, minus something or nonsense."""
    value = _number(text) / 1000
    if 0 < value < 150:
        yield name, value


def _number(value: object, default: float = math.nan) -> float:
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return default
