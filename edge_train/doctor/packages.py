"""The packages: which are there, do they load, which builds are known to be broken here."""

from __future__ import annotations

import importlib.metadata
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace

from edge_train.doctor import cpu
from edge_train.doctor.check import Check, bad, good, info, warn
from edge_train.doctor.host import Ended, Host

#: distribution, module, lowest version: what pip install --no-deps leaves out (see pyproject.toml)
NEEDED = (
    ("numpy", "numpy", "1.26"),
    ("flatbuffers", "flatbuffers", "23.5.26"),
    ("protobuf", "google.protobuf", "4.21"),
    ("tqdm", "tqdm", "4.64"),
    *((("tomli", "tomli", "2.0"),) if sys.version_info < (3, 11) else ()),
    ("onnxruntime", "onnxruntime", "1.20"),
)
_OPTIONAL = ("cffi", "numba", "onnx", "pillow", "safetensors")
#: distributions that bring a module onnxruntime
_RUNTIMES = (
    *("onnxruntime", "onnxruntime-gpu", "onnxruntime-training", "onnxruntime-training-cpu"),
    *("onnxruntime-directml", "onnxruntime-openvino", "ort-nightly"),
)
#: imports each module; a line before each, so that the last one tells which ended the process
_IMPORT = """
import importlib, importlib.metadata, importlib.util, json, sys, warnings
def tell(function, name):
    try:
        return function(name) or ""
    except Exception:
        return ""
for name in sys.argv[1:]:
    place = tell(lambda name: importlib.util.find_spec(name).origin, name)
    version = tell(importlib.metadata.version, name)
    print(json.dumps({"module": name, "file": place, "version": version}), flush=True)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            told = {"version": str(getattr(importlib.import_module(name), "__version__", ""))}
        except Exception as error:
            told = {"error": type(error).__name__ + ": " + str(error)}
    told["said"] = [str(warning.message) for warning in said]
    print(json.dumps({"module": name, **told}), flush=True)
"""


@dataclass(frozen=True)
class Loaded:
    """What came of importing a module: its version and file, or why it did not work."""

    version: str = ""
    file: str = ""
    error: str = ""
    signal: str = ""
    said: tuple[str, ...] = ()
    is_done: bool = False


def checks(host: Host) -> Iterator[Check]:
    """The needed packages, the runtime's build, and the optional ones."""
    loaded = load_all(host)
    for distribution, module, lowest in NEEDED:
        there = loaded[module]
        if module == "onnxruntime":
            yield from _runtime(host, there, lowest)
        else:
            yield _needed(distribution, there, lowest)
    versions = {name: version_of(name) for name in _OPTIONAL}
    found = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    yield info("optional", found or "none of cffi, numba, onnx, pillow, safetensors")


def load_all(host: Host) -> dict[str, Loaded]:
    """Imports the needed modules in a child; another one goes on where a module ended it."""
    waiting = [module for _, module, _ in NEEDED]
    found: dict[str, Loaded] = {}
    while waiting:
        ended = host.run(["-c", _IMPORT, *waiting])
        for name, told in _lines(ended).items():
            found[name] = told if told.is_done else _killed(told, ended)
        if waiting[0] not in found:  # not even the interpreter works
            found[waiting[0]] = _killed(Loaded(), ended)
        waiting = [name for name in waiting if name not in found]
    return found


def _killed(told: Loaded, ended: Ended) -> Loaded:
    why = ended.signal or ended.err.strip()[-300:] or f"exit code {ended.code}"
    error = f"importing it ends the process ({why})"
    return replace(told, error=error, signal=ended.signal, is_done=True)


def broken_build(host: Host, version: str, file: str) -> tuple[str, str] | None:
    """What is known to be wrong with this onnxruntime on this processor, and the remedy."""
    there = cpu.features(host)
    arm = host.machine in ("aarch64", "arm64")
    if not (version.startswith("1.21.0") and arm and there) or "asimdhp" in there:
        return None
    words = (
        "onnxruntime 1.21.0 uses half-precision instructions, which this processor (Cortex-A53, "
        "Cortex-A72: Raspberry Pi 3, 4, Zero 2) does not have"
    )
    if "dist-packages" in file:
        return words, "use the wheel: python3 -m venv env && env/bin/pip install onnxruntime"
    return words, "pip install 'onnxruntime>=1.22'"


def version_of(distribution: str) -> str:
    """The installed version, "" where there is none."""
    try:
        return importlib.metadata.version(distribution) or ""
    except importlib.metadata.PackageNotFoundError:
        return ""


def _lines(ended: Ended) -> dict[str, Loaded]:
    found: dict[str, Loaded] = {}
    for line in ended.out.splitlines():
        try:
            told = json.loads(line)
            name = told.pop("module")
        except (ValueError, AttributeError, KeyError):
            continue  # a package that prints
        said = tuple(told.pop("said", ()))
        is_done = "file" not in told
        told = {key: value for key, value in told.items() if value}
        found[name] = replace(found.get(name, Loaded()), **told, said=said, is_done=is_done)
    return found


def _needed(distribution: str, there: Loaded, lowest: str) -> Check:
    if there.error:
        return bad(distribution, there.error, f"pip install '{distribution}>={lowest}'")
    version = there.version or version_of(distribution)
    if numbers(version) < numbers(lowest):
        words = f"{version or 'unknown version'}, {lowest} or newer is needed"
        return bad(distribution, words, f"pip install '{distribution}>={lowest}'")
    return good(distribution, version)


def _runtime(host: Host, there: Loaded, lowest: str) -> Iterator[Check]:
    several = [f"{name} {version}" for name in _RUNTIMES if (version := version_of(name))]
    version = there.version or next((version_of(n) for n in _RUNTIMES if version_of(n)), "")
    broken = broken_build(host, version, there.file)
    if broken is not None:
        make = bad if there.error else warn
        yield make("onnxruntime", f"{version}: {broken[0]}", broken[1])
    elif there.error:
        yield bad("onnxruntime", f"{version} {there.error}".strip(), _runtime_remedy(host, there))
    else:
        yield _needed("onnxruntime", there, lowest)
    for warning in there.said:
        yield info("onnxruntime says", " ".join(warning.split()))
    if len(several) > 1:
        yield warn(
            "onnxruntime twice",
            f"{', '.join(several)} write the same files",
            "uninstall all of them, install one; edge_train itself with pip install --no-deps",
        )


def _runtime_remedy(host: Host, there: Loaded) -> str:
    if host.is_termux:
        return (
            "pkg upgrade && pkg install python-onnxruntime python-numpy: they must be built for "
            "the Python that is installed (after an update of Python a newer revision of "
            "python-onnxruntime is needed); wheels of PyPI do not fit Termux"
        )
    if there.signal == "SIGILL":
        return "this build does not suit the processor: pip install 'onnxruntime>=1.22'"
    if host.pointer_bits == 32:
        return "Debian trixie's python3-onnxruntime, in a venv made with --system-site-packages"
    return "pip install 'onnxruntime>=1.20'"


def numbers(version: str) -> tuple[int, ...]:
    """1.20.1 as (1, 20, 1); stops at the first part that has no number in front."""
    found: list[int] = []
    for part in version.split("."):
        head = re.match(r"\d+", part)
        if head is None:
            break
        found.append(int(head[0]))
    return tuple(found)
