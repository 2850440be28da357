"""Governor: pauses and stops on a clock that only moves when someone sleeps or works."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from support.machine import write_tree

from edge_train.governor import Governor, Limits, PauseReason, StopReason, Verdict
from edge_train.sensors import Sensors

HEAT = "sys/class/thermal/thermal_zone0/temp"
BITS = "sys/devices/platform/soc/soc:firmware/get_throttled"


class World:
    """A clock, a folder that is the machine, and what happens to it at certain times."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.now = 1000.0
        self.slept = 0.0
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.changes: list[tuple[float, str, str]] = []
        write_tree(root, {"sys/class/thermal/thermal_zone0/type": "cpu-thermal"})

    def governor(self, **limits: Any) -> Governor:
        return Governor(
            Limits(**limits),
            sensors=Sensors(self.root, "/nonexistent"),
            on_event=lambda name, fields: self.events.append((name, fields)),
            clock=lambda: self.now,
            sleep=self.sleep,
        )

    def sleep(self, seconds: float) -> None:
        self.slept += seconds
        self.work(seconds)

    def work(self, seconds: float) -> None:
        self.now += seconds
        while self.changes and self.changes[0][0] <= self.now:
            _, name, text = self.changes.pop(0)
            self.set(name, text)

    def set(self, name: str, text: str) -> None:
        write_tree(self.root, {name: text})

    def after(self, seconds: float, name: str, text: str) -> None:
        self.changes.append((self.now + seconds, name, text))

    def names(self) -> list[str]:
        return [name for name, _ in self.events]


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    made.set(HEAT, "50000")
    return made


def steps(world: World, governor: Governor, count: int, seconds: float = 1.0) -> list[Verdict]:
    found = []
    for step in range(1, count + 1):
        world.work(seconds)
        found.append(governor.check(step))
    return found


def test_without_limits_nothing_happens(world: World) -> None:
    governor = world.governor()
    assert steps(world, governor, 200) == [Verdict()] * 200
    assert (world.slept, world.events) == (0.0, [])
    assert governor.temperature == 50.0
    assert governor.summary.hottest == 50.0


def test_a_pause_for_heat_lasts_until_it_is_cool(world: World) -> None:
    governor = world.governor(max_temperature=80, resume_temperature=65)
    world.set(HEAT, "81000")
    world.after(30, HEAT, "70000")
    world.after(60, HEAT, "64900")
    world.work(1)
    verdict = governor.check(7)
    assert verdict.stop is None
    assert verdict.reasons == (PauseReason.HEAT,)
    assert 59 <= verdict.paused <= 66
    assert governor.summary.paused == {PauseReason.HEAT: pytest.approx(verdict.paused)}
    assert governor.summary.hottest == 81.0
    assert world.names() == ["pause", "resume"]
    assert world.events[0][1] == {
        "step": 7,
        "reason": "heat",
        "text": "81.0 °C, goes on at 65 °C",
    }
    assert governor.check(8) == Verdict()


def test_sensors_are_read_every_interval_only(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[float] = []
    read = Sensors.temperature

    def counted(self: Sensors) -> float | None:
        reads.append(world.now)
        return read(self)

    monkeypatch.setattr(Sensors, "temperature", counted)
    steps(world, world.governor(max_temperature=80, interval=10), 1000, 0.1)
    assert 9 <= len(reads) <= 14


def test_a_pause_that_lasts_too_long_is_a_stop(world: World) -> None:
    governor = world.governor(max_temperature=80, max_pause=120)
    world.set(HEAT, "90000")
    verdict = governor.check(3)
    assert verdict.stop is StopReason.HEAT
    assert 119 <= verdict.paused <= 130
    assert "paused for 120 s" in verdict.detail
    assert verdict.stop.resumable


@pytest.mark.parametrize(
    ("limits", "files", "reason"),
    [
        (
            {"min_battery": 20},
            {
                "sys/class/power_supply/b/type": "Battery",
                "sys/class/power_supply/b/capacity": "12",
                "sys/class/power_supply/b/status": "Discharging",
            },
            PauseReason.LOW_BATTERY,
        ),
        (
            {"require_power": True},
            {
                "sys/class/power_supply/b/type": "Battery",
                "sys/class/power_supply/b/capacity": "90",
                "sys/class/power_supply/b/status": "Discharging",
            },
            PauseReason.UNPLUGGED,
        ),
        pytest.param(
            {"min_memory": 2**30},
            {"proc/meminfo": "MemAvailable: 1000 kB"},
            PauseReason.LOW_MEMORY,
            marks=pytest.mark.slow,
        ),
        (
            {"max_pressure": 10},
            {"proc/pressure/memory": "some avg10=90.0 avg60=0 avg300=0 total=1"},
            PauseReason.LOW_MEMORY,
        ),
        (
            {"require_wifi": True},
            {"sys/class/net/w/wireless/x": "", "sys/class/net/w/operstate": "down"},
            PauseReason.OFFLINE,
        ),
    ],
)
def test_u106_every_reason_is_told(
    limits: dict[str, Any], files: dict[str, str], reason: PauseReason, world: World
) -> None:
    """U106: the pause and the stop that comes of it have the same reason, an enum."""
    write_tree(world.root, files)
    verdict = world.governor(**limits, max_pause=300).check(1)
    assert verdict.reasons == (reason,)
    assert verdict.stop is StopReason(reason.value)
    assert world.events[0][0] == "pause"
    assert world.events[0][1]["reason"] == reason.value


@pytest.mark.slow
def test_low_memory_stops_soon(world: World) -> None:
    """A run that is short of memory is saved before the kernel ends it."""
    world.set("proc/meminfo", "MemAvailable: 1000 kB")
    verdict = world.governor(min_memory=2**30).check(1)
    assert verdict.stop is StopReason.LOW_MEMORY
    assert verdict.paused <= 70


@pytest.mark.parametrize("duty", [20.0, 50.0, 90.0])
def test_duty_cycle(duty: float, world: World) -> None:
    governor = world.governor(duty_cycle=duty)
    start = world.now
    verdicts = steps(world, governor, 2000, 0.013)
    share = 2000 * 0.013 / (world.now - start)
    assert share == pytest.approx(duty / 100, rel=0.05)
    pauses = [verdict.paused for verdict in verdicts if verdict.reasons]
    assert min(pauses) >= 0.5  # long enough for the processor to rest
    assert world.events == []


def test_time_budget_ends_a_run_and_a_pause(world: World) -> None:
    governor = world.governor(time_budget=100)
    verdicts = steps(world, governor, 100)
    assert verdicts[:99] == [Verdict()] * 99
    assert verdicts[99].stop is StopReason.TIME_BUDGET
    world.set(HEAT, "90000")
    hot = world.governor(time_budget=100, max_temperature=80)
    verdict = hot.check(1)
    assert verdict.stop is StopReason.TIME_BUDGET
    assert verdict.paused == pytest.approx(100, abs=1)


def test_u105_a_request_ends_a_pause(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """U105: what a signal handler asks for is heard within a quarter of a second."""
    world.set(HEAT, "90000")
    governor = world.governor(max_temperature=80)
    sleep = world.sleep

    def interrupted(seconds: float) -> None:
        sleep(seconds)
        if world.slept >= 10:
            governor.request_stop(StopReason.TERMINATED)

    monkeypatch.setattr(governor, "_sleep", interrupted)
    verdict = governor.check(5)
    assert verdict.stop is StopReason.TERMINATED
    assert verdict.paused == pytest.approx(10, abs=0.3)


def test_a_missing_sensor_is_said_once_and_ignored(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    (world.root / HEAT).unlink()
    with caplog.at_level(logging.WARNING, "edge_train"):
        governor = world.governor(max_temperature=80, min_battery=20, interval=1)
        assert steps(world, governor, 50) == [Verdict()] * 50
    assert sorted(fields["sensor"] for _, fields in world.events) == ["battery", "temperature"]
    assert set(world.names()) == {"no_sensor"}
    assert len(caplog.records) == 2
    assert "the battery cannot be read" in caplog.text


def test_u093_throttling_is_told_once_and_its_cost_shown(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """U093: a weak supply halves the clock: a warning, the change of the step time, minutes."""
    world.set(BITS, "0x0")
    governor = world.governor()
    with caplog.at_level(logging.INFO, "edge_train"):
        steps(world, governor, 60)
        world.set(BITS, "0x50005")
        steps(world, governor, 120, 2.0)
        world.set(BITS, "0x50000")
        steps(world, governor, 60)
    assert world.names() == ["throttled", "slowdown", "throttled"]
    assert world.events[0][1]["text"] == "under-voltage, throttled"
    assert world.events[1][1]["factor"] == pytest.approx(2.0)
    assert world.events[2][1]["text"] == "the clock is no longer throttled"
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING", "INFO"]
    summary = governor.summary
    assert summary.throttle_bits == 0x50005
    assert summary.slowdown == pytest.approx(2.0)
    assert summary.throttled == pytest.approx(240, abs=61)


def test_work_that_is_no_step_tells_nothing_of_steps_time(world: World) -> None:
    world.set(BITS, "0x0")
    governor = world.governor()
    for step, other in enumerate([30.0] * 20 + [300.0] * 20):
        if step == 20:
            world.set(BITS, "0x5")
        world.work(2.0)
        governor.check(step)
        world.work(other)
        governor.check(step, is_step=False)
    assert governor.summary.slowdown == pytest.approx(1.0)


def test_reasons_and_exit_codes() -> None:
    finished = {reason for reason in StopReason if reason.finished}
    assert {reason.value for reason in finished} == {"completed", "target_reached", "no_progress"}
    assert {reason for reason in StopReason if not reason.resumable} == {
        *finished,
        StopReason.FAILED,
    }
    told = {reason.value for reason in PauseReason} - {"duty_cycle"}
    assert told <= {reason.value for reason in StopReason}
