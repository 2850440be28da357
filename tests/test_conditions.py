"""Limits and the rules with hysteresis: when a pause begins, and when it ends."""

from __future__ import annotations

import math

import pytest

from edge_train.conditions import Limits, PauseReason, active_reasons
from edge_train.sensors import Battery, Readings

HEAT, BATTERY, MEMORY = PauseReason.HEAT, PauseReason.LOW_BATTERY, PauseReason.LOW_MEMORY


def pauses(limits: Limits, readings: list[Readings], reason: PauseReason) -> list[bool]:
    """Whether the reason holds after each of the readings, one after the other."""
    held: set[PauseReason] = set()
    found = []
    for reading in readings:
        held = set(active_reasons(limits, reading, held))
        assert held <= {reason}
        found.append(reason in held)
    return found


@pytest.mark.parametrize(
    ("limits", "degrees", "expected"),
    [
        (Limits(max_temperature=80), [79.9, 80, 78, 75.1, 75, 79], "-+++--"),
        (
            Limits(max_temperature=80, resume_temperature=60),
            [85, 70, 60.1, 60, 79, 80],
            "+++--+",
        ),
        (Limits(max_temperature=80), [None, 90, None, 79], "-+--"),
        (Limits(), [120, 149], "--"),
    ],
)
def test_heat(limits: Limits, degrees: list[float | None], expected: str) -> None:
    readings = [Readings(temperature=value) for value in degrees]
    assert pauses(limits, readings, HEAT) == [sign == "+" for sign in expected]


@pytest.mark.parametrize(
    ("percents", "plugged", "expected"),
    [
        ([31, 30, 29.9, 34.9, 35, 30], False, "--++--"),
        ([10, 5, 1], True, "---"),
        ([10, 36], None, "+-"),
        ([None, 20, None], False, "-+-"),
    ],
)
def test_battery(percents: list[float | None], plugged: bool | None, expected: str) -> None:
    readings = [Readings(battery=Battery(percent, plugged)) for percent in percents]
    found = pauses(Limits(min_battery=30), readings, BATTERY)
    assert found == [sign == "+" for sign in expected]


def test_a_floor_of_99_percent_ends_at_100() -> None:
    readings = [Readings(battery=Battery(value, False)) for value in (98, 99, 100)]
    assert pauses(Limits(min_battery=99), readings, BATTERY) == [True, True, False]


def test_power_and_wireless() -> None:
    unplugged = Readings(battery=Battery(90, False), wifi=False)
    limits = Limits(require_power=True, require_wifi=True)
    assert set(active_reasons(limits, unplugged, ())) == {
        PauseReason.UNPLUGGED,
        PauseReason.OFFLINE,
    }
    unknown = Readings(battery=Battery(90, None), wifi=None)
    assert active_reasons(limits, unknown, ()) == {}
    assert active_reasons(limits, Readings(battery=Battery(90, True), wifi=True), ()) == {}


def test_memory_and_pressure() -> None:
    mega = 2**20
    readings = [Readings(memory=size * mega) for size in (101, 99, 124, 125)]
    assert pauses(Limits(min_memory=100 * mega), readings, MEMORY) == [False, True, True, False]
    stalls = [Readings(pressure=value) for value in (20, 21, 11, 10)]
    assert pauses(Limits(max_pressure=20), stalls, MEMORY) == [False, True, True, False]


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"max_temperature": 0}, "max_temperature"),
        ({"max_temperature": 151}, "max_temperature"),
        ({"max_temperature": math.nan}, "max_temperature"),
        ({"resume_temperature": 60}, "resume_temperature needs max_temperature"),
        ({"max_temperature": 60, "resume_temperature": 60}, "below max_temperature"),
        ({"duty_cycle": 0}, "duty_cycle"),
        ({"duty_cycle": 101}, "duty_cycle"),
        ({"time_budget": -1}, "time_budget"),
        ({"min_battery": 101}, "min_battery"),
        ({"min_memory": 0}, "min_memory"),
        ({"max_pressure": 200}, "max_pressure"),
        ({"max_pause": 0}, "max_pause"),
        ({"interval": 0}, "interval"),
    ],
)
def test_wrong_limits_are_refused_by_name(wrong: dict[str, float], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Limits(**wrong)  # type: ignore[arg-type]


def test_only_what_is_asked_for_is_needed() -> None:
    assert Limits().needs() == frozenset()
    assert Limits(max_temperature=80).needs() == {"temperature"}
    assert Limits(min_battery=20, min_memory=1, require_wifi=True, max_pressure=5).needs() == {
        "battery",
        "memory",
        "wifi",
        "pressure",
    }
