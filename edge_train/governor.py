"""The governor: looks at heat, battery, memory and time between two steps, and pauses or stops.

The Trainer calls ``check`` after each step. A pause sleeps there, in slices, with no thread that
spins; a stop is handed back with its reason, so that the Trainer saves and leaves.
"""

from __future__ import annotations

import enum
import gc
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from edge_train.conditions import Limits, PauseReason, active_reasons
from edge_train.sensors import Readings, Sensors, throttle_text

__all__ = ["Governor", "GovernorSummary", "Limits", "PauseReason", "StopReason", "Verdict"]

_log = logging.getLogger("edge_train.governor")

#: a sleeping governor looks this often whether it was asked to stop (seconds)
_SLICE = 0.25
#: the duty cycle sleeps in pieces of at least so many seconds, so that the processor rests
_PIECE = 0.5
#: how often the throttle bits and the temperature are read when no limit asks for them (seconds)
_WATCH = 30.0
#: steps that are compared before and after the clock was throttled
_COMPARED = 10


class StopReason(enum.Enum):
    """Why a run ended; goes into the log, the result and metrics.jsonl."""

    COMPLETED = "completed"
    TARGET_REACHED = "target_reached"
    NO_PROGRESS = "no_progress"
    INTERRUPTED = "interrupted"
    TERMINATED = "terminated"
    REQUESTED = "requested"
    TIME_BUDGET = "time_budget"
    HEAT = "heat"
    LOW_BATTERY = "low_battery"
    UNPLUGGED = "unplugged"
    LOW_MEMORY = "low_memory"
    OFFLINE = "offline"
    FAILED = "failed"

    @property
    def finished(self) -> bool:
        """Whether the run is at its goal; it has nothing left to do when started again."""
        return self in (self.COMPLETED, self.TARGET_REACHED, self.NO_PROGRESS)

    @property
    def resumable(self) -> bool:
        """Whether the same command goes on from here (exit code 75)."""
        return not self.finished and self is not self.FAILED


@dataclass(frozen=True)
class Verdict:
    """What ``check`` found: None in ``stop`` means go on; ``paused`` are the seconds it slept."""

    stop: StopReason | None = None
    detail: str = ""
    paused: float = 0.0
    reasons: tuple[PauseReason, ...] = ()


@dataclass
class GovernorSummary:
    """Seconds by reason of pause, seconds throttled, all bits seen, the hottest reading in °C."""

    paused: dict[PauseReason, float] = field(default_factory=dict)
    throttled: float = 0.0
    throttle_bits: int = 0
    hottest: float | None = None
    slowdown: float | None = None  # step time since throttling, as a multiple of that before


class Governor:
    """Holds a run within ``limits``; one per run, made when the run starts.

    ``on_event(name, fields)`` hears of "pause", "resume", "throttled", "slowdown" and
    "no_sensor", with fields of plain numbers and strings; each is logged too. ``sensors``,
    ``clock`` and ``sleep`` are for tests.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        sensors: Sensors | None = None,
        on_event: Callable[[str, dict[str, Any]], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.limits = limits or Limits()
        self.on_event = on_event
        self.summary = GovernorSummary()
        self._sensors = sensors or Sensors()
        self._clock, self._sleep = clock, sleep
        self._started = self._left = clock()
        self._debt = 0.0
        self._asked: StopReason | None = None
        self._readings = Readings()
        self._next_look = self._next_watch = self._started
        self._said: set[str] = set()
        self._watch = _ThrottleWatch()

    @property
    def temperature(self) -> float | None:
        """The last reading in °C, None where there is no sensor; never older than half a minute."""
        return self._readings.temperature

    @property
    def readings(self) -> Readings:
        """What was read last."""
        return self._readings

    def request_stop(self, reason: StopReason = StopReason.REQUESTED) -> None:
        """Ends a pause, and lets the next ``check`` say stop; may be called by a signal handler."""
        self._asked = reason

    def check(self, step: int, *, is_step: bool = True) -> Verdict:
        """Looks at everything after step ``step``; sleeps as long as there is a reason to pause.

        Not ``is_step``: other work than a step came before, its time tells nothing of steps' time.
        """
        start = self._clock()
        if is_step:
            self._count_step(start - self._left, start)
        slept: dict[PauseReason, float] = {}
        stop, detail = self._pause_for_conditions(step, slept)
        if stop is None:
            self._rest(start - self._left, slept)
            stop, detail = self._stop_now()
        for reason, seconds in slept.items():
            self.summary.paused[reason] = self.summary.paused.get(reason, 0.0) + seconds
        self._left = self._clock()
        if stop is not None:
            _log.info("stop after step %d: %s%s", step, stop.value, detail and f" ({detail})")
        return Verdict(stop, detail, self._left - start if slept else 0.0, tuple(slept))

    # ---- pauses ----------------------------------------------------------------------------

    def _pause_for_conditions(
        self, step: int, slept: dict[PauseReason, float]
    ) -> tuple[StopReason | None, str]:
        """Sleeps until no condition is left; the reason to stop if one lasts too long."""
        since: dict[PauseReason, float] = {}
        while True:
            if self._clock() >= self._next_look:
                self._look()
            active = active_reasons(self.limits, self._readings, since)
            self._announce(step, active, since)
            if not active:
                return None, ""
            stop, detail = self._stop_now()
            stop, detail = (stop, detail) if stop else self._lasts_too_long(active, since)
            if stop is not None:
                self._announce(step, {}, since)
                return stop, detail
            self._doze(min(self.limits.interval, _WATCH), next(iter(active)), slept)
            self._next_look = self._clock()

    def _announce(
        self, step: int, active: dict[PauseReason, str], since: dict[PauseReason, float]
    ) -> None:
        now = self._clock()
        for reason, text in active.items():
            if reason not in since:
                since[reason] = now
                self._event("pause", logging.WARNING, step=step, reason=reason.value, text=text)
        for reason in [reason for reason in since if reason not in active]:
            seconds = round(now - since.pop(reason), 1)
            fields = {"step": step, "reason": reason.value, "seconds": seconds}
            self._event("resume", logging.INFO, **fields, text=f"after {seconds:g} s")

    def _lasts_too_long(
        self, active: dict[PauseReason, str], since: dict[PauseReason, float]
    ) -> tuple[StopReason | None, str]:
        for reason, text in active.items():
            longest = self.limits.max_pause
            if reason is PauseReason.LOW_MEMORY:
                longest = min(self.limits.memory_patience, longest or self.limits.memory_patience)
            if longest is not None and self._clock() - since[reason] >= longest:
                return StopReason(reason.value), f"{text}; paused for {longest:g} s"
        return None, ""

    def _rest(self, worked: float, slept: dict[PauseReason, float]) -> None:
        """The duty cycle: time off in proportion to the time at work."""
        if self.limits.duty_cycle >= 100.0:
            return
        self._debt += worked * (100.0 / self.limits.duty_cycle - 1.0)
        self._debt = max(0.0, self._debt - sum(slept.values()))
        if self._debt >= _PIECE:
            before = self._clock()
            self._doze(self._debt, PauseReason.DUTY_CYCLE, slept)
            self._debt = max(0.0, self._debt - (self._clock() - before))

    def _doze(self, seconds: float, reason: PauseReason, slept: dict[PauseReason, float]) -> None:
        start = now = self._clock()
        while now - start < seconds and self._stop_now()[0] is None:
            self._sleep(min(_SLICE, seconds - (now - start)))
            now = self._clock()
        slept[reason] = slept.get(reason, 0.0) + now - start

    def _stop_now(self) -> tuple[StopReason | None, str]:
        if self._asked is not None:
            return self._asked, ""
        budget = self.limits.time_budget
        if budget is not None and self._clock() - self._started >= budget:
            return StopReason.TIME_BUDGET, f"{budget:g} s are over"
        return None, ""

    # ---- sensors ---------------------------------------------------------------------------

    def _look(self) -> None:
        """Reads what the limits ask for, and now and then what is only shown."""
        now = self._clock()
        needs = self.limits.needs()
        watching = now >= self._next_watch
        names = needs | {"temperature", "throttled"} if watching else needs
        names -= self._said - needs  # no sensor, and nothing depends on it
        read = self._sensors.read(names, by_file=names - needs)
        if read.memory is not None and read.memory < (self.limits.min_memory or 0):
            gc.collect()
        kept = {name: getattr(self._readings, name) for name in _SHOWN if name not in names}
        self._readings = Readings(**{**vars(read), **kept})
        self._note_missing(names, needs)
        if read.temperature is not None:
            self.summary.hottest = max(read.temperature, self.summary.hottest or read.temperature)
        if watching:
            self._watch_throttling(read.throttled, now)
            self._next_watch = now + _WATCH
        self._next_look = now + (self.limits.interval if needs else _WATCH)

    def _note_missing(self, names: frozenset[str], needs: frozenset[str]) -> None:
        for name in sorted(names):
            if getattr(self._readings, name) is None and name not in self._said:
                self._said.add(name)
                why = self._sensors.missing.get(name, "no source on this machine")
                if name in needs:
                    text = f"the {name} cannot be read ({why}); its limit is ignored"
                    self._event("no_sensor", logging.WARNING, sensor=name, text=text)

    def _watch_throttling(self, bits: int | None, now: float) -> None:
        change = self._watch.note(bits, now)
        self.summary.throttled = self._watch.seconds
        self.summary.throttle_bits |= bits or 0
        if change is None:
            return
        text = throttle_text(change) or "the clock is no longer throttled"
        level = logging.WARNING if change else logging.INFO
        self._event("throttled", level, bits=bits, text=text)

    def _count_step(self, seconds: float, now: float) -> None:
        slowdown = self._watch.step(seconds)
        if slowdown is not None:
            self.summary.slowdown = slowdown
            text = f"a step takes {slowdown:.2f} times as long as before the clock was throttled"
            self._event("slowdown", logging.WARNING, factor=round(slowdown, 3), text=text)

    def _event(self, name: str, level: int, **fields: Any) -> None:
        about = fields.get("reason") or fields.get("sensor") or ""
        _log.log(level, "%s: %s", f"{name} {about}".strip(), fields["text"])
        if self.on_event is not None:
            self.on_event(name, fields)


#: readings for display: kept until the next look at them
_SHOWN = ("temperature", "throttled")


class _ThrottleWatch:
    """Follows the throttle bits, and the step time before and since they were set."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._bits = 0
        self._noted: float | None = None
        self._before: list[float] = []
        self._since: list[float] = []

    def note(self, bits: int | None, now: float) -> int | None:
        """The bits that are set now if they changed, else None."""
        current = (bits or 0) & 0xF
        if self._noted is not None and self._bits:
            self.seconds += now - self._noted
        self._noted = now
        if current == self._bits:
            return None
        if not current or not self._bits:
            self._since = []
        self._bits = current
        return current

    def step(self, seconds: float) -> float | None:
        """Once per throttling: how much longer a step takes since."""
        if not self._bits:
            self._before = [*self._before[1 - _COMPARED :], seconds]
            return None
        if len(self._since) >= _COMPARED or len(self._before) < _COMPARED:
            return None
        self._since.append(seconds)
        if len(self._since) < _COMPARED:
            return None
        return _middle(self._since) / max(_middle(self._before), 1e-9)


def _middle(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]
