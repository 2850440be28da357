"""The conditions under which a run pauses: the limits, and a rule with hysteresis for each."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass

from edge_train.sensors import Readings


class PauseReason(enum.Enum):
    """Why the governor holds a run up."""

    DUTY_CYCLE = "duty_cycle"
    HEAT = "heat"
    LOW_BATTERY = "low_battery"
    UNPLUGGED = "unplugged"
    LOW_MEMORY = "low_memory"
    OFFLINE = "offline"


@dataclass(frozen=True)
class Limits:
    """What a run may do; None (and False) means no limit.

    ``max_temperature`` and ``resume_temperature`` in °C (default: 5 below the upper one);
    ``duty_cycle`` in % of the time; ``time_budget`` in seconds of this process; ``min_battery`` in
    %, while no power comes in (goes on 5 % above, or when plugged in); ``require_power`` and
    ``require_wifi`` pause without them; ``min_memory`` in bytes of MemAvailable (goes on with a
    quarter more); ``max_pressure`` in % of PSI "some avg10" (goes on at half).

    A pause that lasts longer than ``max_pause`` seconds becomes a stop; one for memory already
    after ``memory_patience``, before the kernel ends the process. Sensors are read every
    ``interval`` seconds, commands of the battery every minute at most.

    ValueError names the field for a number out of its range.
    """

    max_temperature: float | None = None
    resume_temperature: float | None = None
    duty_cycle: float = 100.0
    time_budget: float | None = None
    min_battery: float | None = None
    require_power: bool = False
    require_wifi: bool = False
    min_memory: int | None = None
    max_pressure: float | None = None
    max_pause: float | None = None
    memory_patience: float = 60.0
    interval: float = 5.0

    def __post_init__(self) -> None:
        for name, low, high, unit in _RANGES:
            value = getattr(self, name)
            if value is not None and not low < value <= high:
                raise ValueError(
                    f"{name}: expected above {low:g} and up to {high:g} {unit}, got {value}"
                )
        if self.resume_temperature is not None:
            if self.max_temperature is None:
                raise ValueError("resume_temperature needs max_temperature, which is not set")
            if self.resume_temperature >= self.max_temperature:
                raise ValueError(
                    f"resume_temperature: expected below max_temperature ({self.max_temperature}), "
                    f"got {self.resume_temperature}"
                )

    @property
    def cool(self) -> float:
        """The temperature at which a pause for heat ends."""
        if self.resume_temperature is not None:
            return self.resume_temperature
        return math.inf if self.max_temperature is None else self.max_temperature - 5.0

    def needs(self) -> frozenset[str]:
        """The fields of Readings that these limits ask for."""
        asked = {
            "temperature": self.max_temperature is not None,
            "battery": self.min_battery is not None or self.require_power,
            "memory": self.min_memory is not None,
            "pressure": self.max_pressure is not None,
            "wifi": self.require_wifi,
        }
        return frozenset(name for name, wanted in asked.items() if wanted)


_RANGES = (
    ("max_temperature", 0, 150, "°C"),
    ("resume_temperature", 0, 150, "°C"),
    ("duty_cycle", 0, 100, "%"),
    ("time_budget", 0, math.inf, "seconds"),
    ("min_battery", 0, 100, "%"),
    ("min_memory", 0, math.inf, "bytes"),
    ("max_pressure", 0, 100, "%"),
    ("max_pause", 0, math.inf, "seconds"),
    ("memory_patience", 0, math.inf, "seconds"),
    ("interval", 0, math.inf, "seconds"),
)


def active_reasons(
    limits: Limits, readings: Readings, paused_for: Collection[PauseReason]
) -> dict[PauseReason, str]:
    """The reasons to pause now, each with its words; ``paused_for`` has those of before."""
    found = {}
    for reason, rule in _RULES.items():
        text = rule(limits, readings, reason in paused_for)
        if text:
            found[reason] = text
    return found


def _heat(limits: Limits, now: Readings, paused: bool) -> str:
    if limits.max_temperature is None or now.temperature is None:
        return ""
    above = limits.cool if paused else limits.max_temperature
    if now.temperature < above or (paused and now.temperature == above):
        return ""
    return f"{now.temperature:.1f} °C, goes on at {limits.cool:g} °C"


def _low_battery(limits: Limits, now: Readings, paused: bool) -> str:
    battery = now.battery
    if limits.min_battery is None or battery is None or battery.percent is None or battery.plugged:
        return ""
    resume = min(limits.min_battery + 5, 100)
    if battery.percent >= (resume if paused else limits.min_battery):
        return ""
    return f"battery at {battery.percent:g} %, goes on at {resume:g} % or on power"


def _unplugged(limits: Limits, now: Readings, _: bool) -> str:
    battery = now.battery
    if not limits.require_power or battery is None or battery.plugged is not False:
        return ""
    return "no power comes in, goes on when plugged in"


def _low_memory(limits: Limits, now: Readings, paused: bool) -> str:
    words = []
    if limits.min_memory is not None and now.memory is not None:
        needed = limits.min_memory * (1.25 if paused else 1.0)
        if now.memory < needed:
            words.append(
                f"{now.memory / 2**20:.0f} MB of memory available, {needed / 2**20:.0f} needed"
            )
    if limits.max_pressure is not None and now.pressure is not None:
        most = limits.max_pressure * (0.5 if paused else 1.0)
        if now.pressure > most:
            words.append(
                f"{now.pressure:g} % of the time waits for memory, at most {most:g} % wanted"
            )
    return "; ".join(words)


def _offline(limits: Limits, now: Readings, _: bool) -> str:
    if not limits.require_wifi or now.wifi is not False:
        return ""
    return "no wireless network, goes on when connected"


_RULES: dict[PauseReason, Callable[[Limits, Readings, bool], str]] = {
    PauseReason.HEAT: _heat,
    PauseReason.LOW_BATTERY: _low_battery,
    PauseReason.UNPLUGGED: _unplugged,
    PauseReason.LOW_MEMORY: _low_memory,
    PauseReason.OFFLINE: _offline,
}
