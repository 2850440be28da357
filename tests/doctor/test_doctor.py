"""The doctor: on this machine, and on machines put together from files and fake packages."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from support.child import ROOT, run_python
from support.machine import PI_CPUINFO, write_command, write_tree

from edge_train import doctor
from edge_train.doctor import Check, Host, Outcome, packages, places, trial

try:
    import tomllib
except ImportError:  # Python 3.10
    tomllib = None  # type: ignore[assignment]

DIES = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"
A53 = PI_CPUINFO.replace("0xd08", "0xd03")
PI_5 = PI_CPUINFO.replace("0xd08", "0xd0b").replace("crc32", "crc32 fphp asimdhp")


def environ(*folders: Path, **more: str) -> dict[str, str]:
    path = os.pathsep.join(map(str, (*folders, ROOT)))
    return {**os.environ, "PYTHONPATH": path, **more}


def host(root: Path, files: dict[str, str] | None = None, **more: Any) -> Host:
    return Host(root=write_tree(root, files or {}), **{"environ": environ(), **more})


def named(found: list[Check], name: str) -> Check:
    matching = [check for check in found if check.name == name]
    assert len(matching) == 1, [check.name for check in found]
    return matching[0]


@pytest.fixture(scope="module")
def here() -> list[tuple[str, Check]]:
    return list(doctor.examine(Host(environ=environ())))


@pytest.mark.slow
def test_this_machine_can_train(here: list[tuple[str, Check]]) -> None:
    found = [check for _, check in here]
    assert not doctor.failed(found), [c for c in found if c.outcome is Outcome.FAIL]
    groups = list(dict.fromkeys(group for group, _ in here))
    assert groups == ["machine", "processor", "packages", "places", "training"]
    step = named(found, "training step")
    assert step.outcome is Outcome.PASS
    assert re.search(r"\d+\.\d ms, peak memory \d+ MB", step.text)
    names = {check.name for check in found}
    for name in ("page size", "memory", "features", "threads", "numpy", "onnxruntime", "kernels"):
        assert name in names
    assert "stderr" not in names  # U090: nothing is said in normal use


@pytest.mark.skipif(tomllib is None, reason="Python 3.10 has no tomllib")
def test_what_is_needed_is_what_the_package_declares() -> None:
    """After pip install --no-deps the doctor misses what pip would have brought."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    here = [line.partition(";")[0] for line in declared if not line.startswith(("tomli", "cffi"))]
    needed = [f"{name}>={lowest}" for name, _, lowest in packages.NEEDED if name != "tomli"]
    assert sorted(needed) == sorted(here)
    assert "tomli>=2.0; python_version < '3.11'" in declared


@pytest.mark.skipif(tomllib is None, reason="Python 3.10 has no tomllib")
@pytest.mark.parametrize(
    ("machine", "system", "brought"),
    [
        ("x86_64", "linux", {"cffi", "numpy", "onnxruntime"}),
        ("aarch64", "linux", {"cffi", "numpy", "onnxruntime"}),
        ("armv7l", "linux", set()),
        ("aarch64", "android", set()),
        ("arm64", "darwin", {"numpy", "onnxruntime"}),
    ],
)
def test_u091_u098_pip_compiles_nothing(machine: str, system: str, brought: set[str]) -> None:
    """Where there are no wheels pip takes the distribution's packages, and builds none."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    environment = {
        "platform_machine": machine,
        "sys_platform": system,
        "platform_python_implementation": "CPython",
    }
    found = set()
    for line in declared:
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate(environment):
            found.add(requirement.name)
    assert found & {"cffi", "numpy", "onnxruntime"} == brought


def fakes(folder: Path, **more: str) -> Path:
    """Packages that are imported in no time; ``more`` says what a module's code is."""
    modules = [module.replace(".", "/") for _, module, _ in packages.NEEDED]
    codes = {**dict.fromkeys(modules, "__version__ = '999.0'"), "google": "", **more}
    write_tree(folder, {f"{name}/__init__.py": code for name, code in codes.items()})
    return folder


def on(tmp_path: Path, code: str, name: str = "onnxruntime") -> dict[str, str]:
    """An environment in which the module ``name`` is ``code``."""
    return environ(fakes(tmp_path / "fake", **{name: code}))


def packages_of(tmp_path: Path, code: str, name: str = "onnxruntime", **more: Any) -> list[Check]:
    where = on(tmp_path, code, name)
    return list(packages.checks(host(tmp_path / "root", environ=where, **more)))


@pytest.mark.parametrize("name", ["numpy", "flatbuffers", "tqdm"])
def test_u099_a_missing_package_is_named(name: str, tmp_path: Path) -> None:
    code = f"raise ModuleNotFoundError(\"No module named '{name}'\")"
    found = packages_of(tmp_path, code, name)
    assert doctor.failed(found)
    missing = named(found, name)
    assert missing.outcome is Outcome.FAIL
    assert f"No module named '{name}'" in missing.text
    assert missing.remedy.startswith(f"pip install '{name}>=")


def test_an_old_package_is_named(tmp_path: Path) -> None:
    found = named(packages_of(tmp_path, "__version__ = '1.19.2'"), "onnxruntime")
    assert found.outcome is Outcome.FAIL
    assert found.text == "1.19.2, 1.20 or newer is needed"


def test_a_package_that_ends_the_process_hides_no_other(tmp_path: Path) -> None:
    found = packages_of(tmp_path, DIES, "numpy")
    assert "SIGILL" in named(found, "numpy").text
    assert named(found, "protobuf").outcome is Outcome.PASS
    assert named(found, "tqdm").outcome is Outcome.PASS


@pytest.mark.parametrize(
    ("cpuinfo", "version", "packaged", "words", "remedy"),
    [
        (PI_CPUINFO, "1.21.0", False, "half-precision", "onnxruntime>=1.22"),
        (A53, "1.21.0", False, "half-precision", "onnxruntime>=1.22"),
        (PI_CPUINFO, "1.21.0+dfsg", True, "half-precision", "use the wheel"),
        (A53, "1.21.0+dfsg", True, "half-precision", "use the wheel"),
        (PI_5, "1.21.0+dfsg", True, None, None),
        (PI_CPUINFO, "1.21.1", False, None, None),
        (PI_CPUINFO, "1.22.0", False, None, None),
    ],
)
def test_u089_known_broken_builds(
    cpuinfo: str,
    version: str,
    packaged: bool,
    words: str | None,
    remedy: str | None,
    tmp_path: Path,
) -> None:
    """U089: 1.21.0 of PyPI and of Debian trixie on Cortex-A53 and A72 (seen under QEMU)."""
    folder = tmp_path / ("dist-packages" if packaged else "site-packages")
    fakes(folder, onnxruntime=DIES)
    metadata = f"Metadata-Version: 2.1\nName: onnxruntime\nVersion: {version}\n"
    write_tree(folder, {f"onnxruntime-{version}.dist-info/METADATA": metadata})
    pi = host(
        tmp_path / "root",
        {"proc/cpuinfo": cpuinfo},
        machine="aarch64",
        environ=environ(folder),
    )
    found = named(list(packages.checks(pi)), "onnxruntime")
    assert found.outcome is Outcome.FAIL
    if words is None or remedy is None:
        assert "importing it ends the process (SIGILL)" in found.text
        assert "pip install 'onnxruntime>=1.22'" in found.remedy
    else:
        assert words in found.text
        assert remedy in found.remedy


def test_u100_termux(tmp_path: Path) -> None:
    """U100: a package for another Python; the warning of an unknown platform is only told."""
    where = on(tmp_path, "raise ImportError('dlopen failed: cannot locate symbol')")
    phone = host(tmp_path / "root", environ={**where, "TERMUX_VERSION": "0.119"})
    found = named(list(packages.checks(phone)), "onnxruntime")
    assert found.outcome is Outcome.FAIL
    assert "pkg install python-onnxruntime" in found.remedy
    assert "newer revision" in found.remedy
    noisy = "import warnings; warnings.warn('Unsupported platform (android)'); __version__='1.23.2'"
    found_too = packages_of(tmp_path / "noisy", noisy)
    assert named(found_too, "onnxruntime").outcome is Outcome.PASS
    assert named(found_too, "onnxruntime says").text == "Unsupported platform (android)"


def test_two_runtimes_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"onnxruntime": "1.32.0", "onnxruntime-training-cpu": "1.19.2"}
    monkeypatch.setattr(packages, "version_of", lambda name: there.get(name, ""))
    found = packages_of(tmp_path, "__version__ = '1.32.0'")
    assert named(found, "onnxruntime twice").outcome is Outcome.WARN


def test_32_bits_on_a_64_bit_kernel_and_16_kib_pages(tmp_path: Path) -> None:
    from edge_train.doctor import system

    narrow = host(tmp_path, machine="aarch64", pointer_bits=32, page_size=16384)
    found = list(system.checks(narrow))
    width = named(found, "machine")
    assert width.outcome is Outcome.WARN
    assert "on a 64-bit kernel" in width.text
    assert "python3-onnxruntime" in width.remedy
    assert named(found, "page size").text.startswith("16 KiB")
    armv7 = named(list(system.checks(host(tmp_path, machine="armv7l", pointer_bits=32))), "machine")
    assert "64-bit kernel" not in armv7.text
    assert named(list(system.checks(host(tmp_path, page_size=65536))), "page size").outcome is (
        Outcome.WARN
    )


def test_a_raspberry_pi_is_recognised(tmp_path: Path) -> None:
    from edge_train.doctor import cpu, system

    files = {
        "proc/cpuinfo": PI_CPUINFO,
        "proc/device-tree/model": "Raspberry Pi 4 Model B Rev 1.4\0",
        "proc/meminfo": "MemTotal: 948000 kB\nMemAvailable: 100000 kB\nSwapTotal: 102396 kB\n",
        "sys/fs/cgroup/cpu.max": "50000 100000",
    }
    pi = host(tmp_path, files, machine="aarch64")
    assert named(list(system.checks(pi)), "board").text == "Raspberry Pi 4 Model B Rev 1.4"
    memory = named(list(system.checks(pi)), "memory")
    assert memory.outcome is Outcome.WARN
    assert "98 MB available" in memory.text
    found = list(cpu.checks(pi))
    assert named(found, "name").text == "Cortex-A72, Raspberry Pi 4 Model B Rev 1.4"
    assert named(found, "features").text == "asimd"
    assert "OMP_NUM_THREADS=1" in named(found, "threads").remedy


def test_closed_proc_and_sys_fail_nothing(tmp_path: Path) -> None:
    """Android: what cannot be read is told with what is lost by it."""
    from edge_train.doctor import cpu, system

    closed = host(tmp_path, environ=environ(PATH="/nonexistent"))
    checks = [*system.checks(closed), *cpu.checks(closed), *places.checks(closed)]
    assert not doctor.failed(checks)
    assert (
        "/sys/class/thermal (no such file or directory), for temperature limits"
        in named(checks, "/proc and /sys").text
    )
    assert named(checks, "memory").outcome is Outcome.INFO
    assert named(checks, "temperature").text.startswith("unknown")


@pytest.mark.parametrize(
    ("bits", "outcome", "words"),
    [
        ("throttled=0x0", Outcome.PASS, "never since boot"),
        ("throttled=0x50005", Outcome.WARN, "now: under-voltage, throttled; since boot: under-"),
        ("throttled=0x80000", Outcome.WARN, "now: none; since boot: soft heat limit"),
    ],
)
def test_u093_throttling(bits: str, outcome: Outcome, words: str, tmp_path: Path) -> None:
    path = write_command(tmp_path / "bin", "vcgencmd", f"echo {bits}")
    found = list(places.checks(host(tmp_path / "root", environ=environ(PATH=path))))
    assert named(found, "throttling").outcome is outcome
    assert words in named(found, "throttling").text


def test_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "card").mkdir()
    asked = host(tmp_path / "root", folders=(tmp_path / "card", tmp_path / "file" / "runs"))
    found = [check for check in places.checks(asked) if check.name.startswith("folder")]
    assert [check.outcome for check in found] == [Outcome.PASS, Outcome.FAIL]
    assert "cannot be written" in found[1].text
    assert list((tmp_path / "card").iterdir()) == []
    monkeypatch.setattr(places, "_LITTLE_SPACE", 2**60)
    assert next(iter(places.checks(host(tmp_path)))).outcome is Outcome.WARN


def test_u103_shared_storage_without_links_and_chmod(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U103: Android's shared storage refuses both; saves do without."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr(os, "chmod", refuse)
    asked = host(tmp_path / "root", folders=(tmp_path,))
    found = [check for check in places.checks(asked) if check.name.startswith("folder")]
    assert found[0].outcome is Outcome.PASS
    assert "no hard links, no chmod (edge_train does without)" in found[0].text


@pytest.mark.parametrize(
    ("script", "words", "remedy"),
    [
        ("kill -ILL $$", "ended by SIGILL", "instructions that this processor lacks"),
        ("kill -KILL $$", "ended by SIGKILL", "most likely for memory"),
        ("echo Traceback >&2; echo 'ImportError: no numpy' >&2; exit 1", "no numpy", "report"),
        ("exit 0", "exit code 0", "report"),
        ("echo '{}'", "exit code 0", "report"),
    ],
)
def test_a_step_that_fails(script: str, words: str, remedy: str, tmp_path: Path) -> None:
    write_command(tmp_path, "python", script)
    found = list(trial.checks(host(tmp_path / "root", python=str(tmp_path / "python"))))
    assert [check.outcome for check in found] == [Outcome.FAIL]
    assert words in found[0].text
    assert remedy in found[0].remedy


def test_no_python_at_all(tmp_path: Path) -> None:
    found = list(doctor.examine(host(tmp_path, python=str(tmp_path / "none"))))
    checks = [check for _, check in found]
    assert doctor.failed(checks)
    assert "cannot be started" in named(checks, "training step").text


def test_noise_of_the_step_is_told(tmp_path: Path) -> None:
    step = '{"before":2,"after":1,"milliseconds":1,"peak":1048576,"kernels":"numpy",'
    step += '"library":null,"threads":4}'
    for noise, outcome in (
        ("Schema error: Trying to register schema ... already registered", Outcome.INFO),
        ("GPU device discovery failed", Outcome.WARN),
    ):
        write_command(tmp_path, "python", f"echo '{noise}' >&2; echo '{step}'")
        found = list(trial.checks(host(tmp_path / "root", python=str(tmp_path / "python"))))
        assert named(found, "stderr").outcome is outcome
        assert "no native library" in named(found, "kernels").text


@pytest.mark.slow
def test_u094_threads_are_those_allowed(tmp_path: Path) -> None:
    """U094: taskset, cpusets: one CPU allowed means one thread, and no line on stderr."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        found = list(trial.checks(host(tmp_path, environ=environ(OMP_NUM_THREADS=""))))
    finally:
        os.sched_setaffinity(0, allowed)
    assert named(found, "threads used").text == "1"
    assert "stderr" not in {check.name for check in found}


def test_the_home_folder_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    asked = host(tmp_path / "root", folders=(tmp_path / "runs",))
    (tmp_path / "runs").mkdir()
    texts = [f"{c.name} {c.text}" for c in places.checks(asked) if c.name.startswith("folder")]
    assert texts[0].startswith("folder ~/runs ~/runs, ")


def test_the_command_works_where_nothing_is_installed() -> None:
    """pip install --no-deps: every other command names the doctor, who names the packages."""
    code = """
import sys
for name in ("numpy", "flatbuffers", "google", "tqdm", "onnxruntime", "onnx"):
    sys.modules[name] = None
from edge_train import cli, doctor
assert cli.main(["inspect", sys.argv[1]]) == 2
print(*sorted(name for name in sys.modules if name.startswith("edge_train.doctor")))
"""
    done = run_python(code, ROOT)
    assert done.returncode == 0, done.stderr
    assert "edge_train.doctor.packages" in done.stdout
    assert done.stderr.endswith("; edge-train doctor says what is missing here\n")
    assert done.stderr.count("\n") == 1
