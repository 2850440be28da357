"""Sensors: fake /sys and /proc trees and fake commands; what is missing or forbidden is None."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.machine import write_command, write_tree

from edge_train.sensors import Battery, Sensors, throttle_text

NOWHERE = "/nonexistent"


def sensors(root: Path, files: dict[str, str], path: str = NOWHERE) -> Sensors:
    return Sensors(write_tree(root, files), path)


def zone(number: int, kind: str, value: str) -> dict[str, str]:
    folder = f"sys/class/thermal/thermal_zone{number}"
    return {f"{folder}/type": f"{kind}\n", f"{folder}/temp": f"{value}\n"}


@pytest.mark.parametrize(
    ("zones", "expected"),
    [
        ([("cpu-thermal", "61342")], 61.342),
        ([("cpu-0-0", "50000"), ("cpu-1-0", "55000"), ("battery", "90000")], 55.0),
        ([("gpu", "44000"), ("pmic", "51000")], 51.0),
        ([("cpu-thermal", "0"), ("soc", "-40000"), ("cpu2", "4294967")], None),
        ([("cpu-thermal", "none")], None),
        ([], None),
    ],
)
def test_temperature_of_thermal_zones(
    zones: list[tuple[str, str]], expected: float | None, tmp_path: Path
) -> None:
    files: dict[str, str] = {}
    for number, (kind, value) in enumerate(zones):
        files.update(zone(number, kind, value))
    made = sensors(tmp_path, files)
    assert made.temperature() == expected
    assert ("temperature" in made.missing) == (expected is None)


def test_temperature_of_hwmon_vcgencmd_and_battery(tmp_path: Path) -> None:
    chips = {
        "sys/class/hwmon/hwmon0/name": "nvme\n",
        "sys/class/hwmon/hwmon0/temp1_input": "71000\n",
        "sys/class/hwmon/hwmon1/name": "k10temp\n",
        "sys/class/hwmon/hwmon1/temp1_input": "48500\n",
    }
    assert sensors(tmp_path / "chips", chips).temperature() == 48.5
    pi = write_command(tmp_path / "pi", "vcgencmd", """echo "temp=48.3'C" """)
    assert sensors(tmp_path / "none", {}, pi).temperature() == 48.3
    termux = write_command(tmp_path / "termux", "termux-battery-status", battery(temperature=31.5))
    assert sensors(tmp_path / "none", {}, termux).temperature() == 31.5


def battery(**fields: object) -> str:
    return f"echo '{json.dumps(fields)}'"


@pytest.mark.parametrize(
    ("text", "bits"), [("0x50005\n", 0x50005), ("throttled=0x0", 0), ("throttled=0x8", 8)]
)
def test_throttle_bits(text: str, bits: int, tmp_path: Path) -> None:
    path = write_command(tmp_path / "bin", "vcgencmd", f"[ $1 = get_throttled ] && echo '{text}'")
    assert sensors(tmp_path / "root", {}, path).throttled() == bits
    file = {"sys/devices/platform/soc/soc:firmware/get_throttled": text}
    assert sensors(tmp_path / "kernel", file).throttled() == bits
    assert throttle_text(0x50005) == "under-voltage, throttled"
    assert throttle_text(0x50005 >> 16) == "under-voltage, throttled"


@pytest.mark.parametrize(
    "script",
    [
        "exit 1",
        "echo VCHI initialization failed",
        pytest.param("exec sleep 20", marks=pytest.mark.slow),
        "sleep 20; echo",
        "kill -9 $$",
        "echo",
    ],
)
def test_a_command_that_fails_is_no_reading(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge_train.sensors._COMMAND_SECONDS", 0.2)
    path = write_command(tmp_path, "vcgencmd", script)
    write_command(tmp_path, "termux-battery-status", script)
    made = Sensors(tmp_path / "root", path)
    assert made.throttled() is None
    assert made.battery() is None
    assert made.missing["throttled"]
    assert "termux-battery-status" in made.missing["battery"]


@pytest.mark.parametrize(
    ("supplies", "expected"),
    [
        ({"BAT0": ("Battery", "57", "Discharging")}, Battery(57.0, False)),
        ({"BAT0": ("Battery", "57", "Charging")}, Battery(57.0, True)),
        (
            {"BAT0": ("Battery", "57", "Unknown"), "AC": ("Mains", "", "1")},
            Battery(57.0, True),
        ),
        ({"BAT0": ("Battery", "80", "Full"), "BAT1": ("Battery", "9", "Full")}, Battery(9.0, True)),
        ({"AC": ("Mains", "", "1")}, None),
        ({"BAT0": ("Battery", "", "")}, None),
    ],
)
def test_battery_of_a_laptop(
    supplies: dict[str, tuple[str, str, str]], expected: Battery | None, tmp_path: Path
) -> None:
    files = {}
    for name, (kind, capacity, state) in supplies.items():
        folder = f"sys/class/power_supply/{name}"
        files[f"{folder}/type"] = f"{kind}\n"
        files[f"{folder}/capacity"] = f"{capacity}\n"
        files[f"{folder}/{'online' if kind == 'Mains' else 'status'}"] = f"{state}\n"
    assert sensors(tmp_path, files).battery() == expected


def test_the_battery_of_a_mouse_is_not_ours(tmp_path: Path) -> None:
    folder = "sys/class/power_supply/hidpp_battery_0"
    files = {f"{folder}/type": "Battery", f"{folder}/capacity": "3", f"{folder}/scope": "Device"}
    assert sensors(tmp_path, files).battery() is None


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (
            {"percentage": 41, "plugged": "UNPLUGGED", "temperature": 29.9},
            Battery(41.0, False, 29.9),
        ),
        ({"percentage": 99, "plugged": "PLUGGED_AC"}, Battery(99.0, True, None)),
        ({"health": "GOOD"}, Battery(None, None, None)),
    ],
)
def test_battery_of_termux(fields: dict[str, object], expected: Battery, tmp_path: Path) -> None:
    path = write_command(tmp_path / "bin", "termux-battery-status", battery(**fields))
    assert sensors(tmp_path / "root", {}, path).battery() == expected


def test_u102_few_processes_are_started(tmp_path: Path) -> None:
    """U102: Android ends apps with many processes: one call a minute, none for display alone."""
    script = f"echo x >> {tmp_path}/calls; {battery(percentage=50, plugged='UNPLUGGED')}"
    path = write_command(tmp_path / "bin", "termux-battery-status", script)
    made = Sensors(tmp_path, path)
    shown = frozenset({"temperature", "battery"})
    assert made.read(shown, by_file=shown).battery is None
    assert not (tmp_path / "calls").exists()
    for _ in range(20):
        assert made.read(shown).battery == Battery(50.0, False)
    assert (tmp_path / "calls").read_text() == "x\n"


def test_memory_and_pressure(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": "MemTotal:  900000 kB\nMemAvailable:   204800 kB\n",
        "proc/pressure/memory": "some avg10=12.50 avg60=1.0 avg300=0.1 total=9\n"
        "full avg10=3.00 avg60=0.0 avg300=0.0 total=5\n",
    }
    made = sensors(tmp_path, files)
    assert made.memory() == 204800 * 1024
    assert made.pressure() == 12.5


@pytest.mark.parametrize("text", ["", "MemAvailable:\n", "some\n", "\0\0\0", "MemAvailable: x kB"])
def test_odd_files_are_no_reading(text: str, tmp_path: Path) -> None:
    made = sensors(tmp_path, {"proc/meminfo": text, "proc/pressure/memory": text})
    assert made.memory() in (None, 0)
    assert made.pressure() is None


def test_wireless_network(tmp_path: Path) -> None:
    link = "sys/class/net/wlan0"
    for state, up in (("up", True), ("down", False)):
        files = {f"{link}/wireless/status": "", f"{link}/operstate": f"{state}\n"}
        assert sensors(tmp_path / state, files).wifi() is up
    for state, up in (("COMPLETED", True), ("DISCONNECTED", False)):
        script = battery(supplicant_state=state)
        path = write_command(tmp_path / state, "termux-wifi-connectioninfo", script)
        assert sensors(tmp_path / "none", {}, path).wifi() is up
    assert sensors(tmp_path / "none", {}).wifi() is None


def test_forbidden_files_are_no_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Android: /proc/stat and most of /sys raise PermissionError."""

    def refuse(self: Path, *_: object, **__: object) -> str:
        raise PermissionError(13, "Permission denied", str(self))

    made = sensors(tmp_path, zone(0, "cpu", "50000"))
    monkeypatch.setattr(Path, "iterdir", refuse)
    monkeypatch.setattr(Path, "read_text", refuse)
    names = frozenset({"temperature", "throttled", "battery", "memory", "pressure", "wifi"})
    assert set(vars(made.read(names)).values()) == {None}
    assert set(made.missing) == names
    assert "Permission denied" in made.missing["temperature"]
    assert "Permission denied" in made.missing["memory"]
