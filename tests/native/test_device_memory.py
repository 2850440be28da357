"""The C side of device memory: under AddressSanitizer, and held against what it is bound to."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from support.devices import NATIVE, opencl, use_native

from edge_train.device import native

TEST = Path(__file__).with_name("device_test.c")
SOURCES = [NATIVE / "device.c", NATIVE / "device_opencl.c"]
SANITIZERS = "-fsanitize=address,undefined"


def compiler() -> str:
    found = shutil.which("gcc") or shutil.which("cc")
    if found is None:
        pytest.skip("no C compiler here")
    return found


def hosted(folder: Path, *flags: str) -> Path:
    program = folder / "device_test"
    command = [compiler(), "-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", *flags]
    libraries = ["-ldl", "-lm"]
    subprocess.run(
        [*command, str(TEST), *map(str, SOURCES), "-o", str(program), *libraries], check=True
    )
    return program


def run(program: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    # PoCL keeps what it has: leaks are looked for without it
    leaks = "0" if "opencl" in arguments else "1"
    environment = {**os.environ, "ASAN_OPTIONS": f"detect_leaks={leaks}"}
    environment["UBSAN_OPTIONS"] = "halt_on_error=1"
    command = [str(program), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("devices", ["host", "opencl"])
def test_under_the_address_sanitizer(
    devices: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if devices == "opencl":
        use_native(monkeypatch, True)
        opencl()
    done = run(hosted(tmp_path, SANITIZERS), tmp_path / "file", devices)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")


@pytest.mark.qemu
@pytest.mark.parametrize(
    ("emulator", "triple"),
    [
        ("qemu-aarch64-static", "aarch64-linux-gnu"),
        ("qemu-arm-static", "arm-linux-gnueabihf"),
    ],
)
def test_on_emulated_arm(emulator: str, triple: str, tmp_path: Path) -> None:
    """64 and 32 bits: handles and offsets are 64-bit numbers on both."""
    cross, runner = shutil.which(f"{triple}-gcc"), shutil.which(emulator)
    if cross is None or runner is None or not Path(f"/usr/{triple}/include/stdio.h").is_file():
        pytest.skip(f"no {triple}-gcc, no libc6-dev for it, or no {emulator}")
    program = tmp_path / "device_test"
    command = [cross, "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", str(TEST)]
    subprocess.run([*command, *map(str, SOURCES), "-o", str(program), "-ldl", "-lm"], check=True)
    done = subprocess.run(
        [runner, "-L", f"/usr/{triple}", str(program), str(tmp_path / "file")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


@pytest.mark.slow
def test_the_sanitizer_sees_a_fault(tmp_path: Path) -> None:
    """The same program, with a copy that goes one byte too far: it must not pass."""
    text = TEST.read_text()
    wrong = text.replace('#include "../../', f'#include "{NATIVE.parent}/')
    wrong = wrong.replace("at(back), BYTES) == 0", "at(malloc(BYTES - 1)), BYTES) == 0", 1)
    assert wrong.count("malloc(BYTES") == 1
    source = tmp_path / "wrong.c"
    source.write_text(wrong)
    command = [compiler(), "-std=gnu11", "-O1", "-g", "-w", SANITIZERS, str(source)]
    program = tmp_path / "wrong"
    subprocess.run([*command, *map(str, SOURCES), "-o", str(program), "-ldl", "-lm"], check=True)
    done = run(program, tmp_path / "file")
    assert done.returncode != 0
    assert "heap-buffer-overflow" in done.stderr


def test_the_declarations_are_those_of_the_header() -> None:
    """native.SIGNATURES, kind by kind, and the numbers both sides use."""
    header = (NATIVE / "device.h").read_text()
    letters = {"int32_t": "i", "int64_t": "n", "uint64_t": "a"}
    declared = {}
    for result, name, arguments in re.findall(
        r"ET_PUBLIC (\w+) (et_\w+)\(([^)]*)\)", header.replace("\n", " ")
    ):
        kinds = [part.split()[0] for part in arguments.split(",") if part.strip() != "void"]
        declared[name] = ("".join(letters[kind] for kind in kinds), letters[result])
    assert declared == native.SIGNATURES
    numbers = {}
    for name, value in re.findall(r"\b(ET_[A-Z0-9_]+) = (-?\d+)", header):
        numbers[name] = int(value)
    pairs = {
        "ET_DEVICE_ABI": native.ABI,
        "ET_HOST": native.HOST,
        "ET_OPENCL": native.OPENCL,
        "ET_HUGE": native.HUGE,
        "ET_LOCK": native.LOCK,
        "ET_SHARED": native.SHARED,
        "ET_READ_ONLY": native.READ_ONLY,
        "ET_COPIES": native.COPIES,
        "ET_MEMORY": native.MEMORY,
        "ET_LARGEST": native.LARGEST,
        "ET_UNIFIED": native.UNIFIED,
        "ET_EXACT": native.EXACT,
        "ET_NAME": native.NAME,
        "ET_VERSION": native.VERSION,
        "ET_BUILD_LOG": native.BUILD_LOG,
        "ET_ADAMW0": native.ADAMW0,
        "ET_ADAMW1": native.ADAMW1,
        "ET_SGD": native.SGD,
        "ET_FLUSH": native.FLUSH,
        "ET_OPENCL_ERROR": native._OPENCL_ERROR,
        "ET_ELIBACC": native.NO_LIBRARY,
    }
    assert {name: numbers[name] for name in pairs} == pairs
    fields = re.search(r"typedef struct et_system \{(.*?)\} et_system", header, re.DOTALL)
    assert fields is not None
    assert fields[1].count(";") == len(native.SYSTEM)


OFFICIAL = """
#include <CL/cl.h>
#define SAME(ours, theirs) _Static_assert((long long)(ours) == (long long)(theirs), #theirs)
enum {{ {ours} }};
{asserts}
{functions}
int main(void) {{ return 0; }}
"""
CONSTANTS = {
    "CL_READ_WRITE": "CL_MEM_READ_WRITE",
    "CL_HOST_POINTER": "CL_MEM_USE_HOST_PTR",
    "CL_READ_AND_WRITE": "CL_MAP_READ | CL_MAP_WRITE",
    "CL_LARGEST_BUFFER": "CL_DEVICE_MAX_MEM_ALLOC_SIZE",
    "CL_SINGLE_CONFIG": "CL_DEVICE_SINGLE_FP_CONFIG",
    "CL_MEMORY_SIZE": "CL_DEVICE_GLOBAL_MEM_SIZE",
    "CL_NAME": "CL_DEVICE_NAME",
    "CL_VERSION": "CL_DEVICE_VERSION",
    "CL_UNIFIED_MEMORY": "CL_DEVICE_HOST_UNIFIED_MEMORY",
    "CL_PLATFORM": "CL_CONTEXT_PLATFORM",
    "CL_LOG": "CL_PROGRAM_BUILD_LOG",
    "CL_EXACT_DIVIDE_SQRT": "CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT",
}
# our words for OpenCL's types: pointers to what only the driver knows, and numbers
TYPES = {
    "cl_platform": "cl_platform_id",
    "cl_device": "cl_device_id",
    "cl_queue": "cl_command_queue",
    "cl_mem_": "cl_mem",
    "cl_events": "const cl_event *",
}
# what we never pass
CALLBACKS = {
    "clCreateContext": "void (*)(const char *, const void *, size_t, void *)",
    "clBuildProgram": "void (*)(cl_program, void *)",
}


def test_the_opencl_names_are_those_of_the_official_header(tmp_path: Path) -> None:
    """Constants, and the type of each function."""
    ours = (NATIVE / "device_opencl_api.h").read_text()
    values = dict(re.findall(r"\b(CL_\w+) = ([^,}]+)", ours))
    assert set(CONSTANTS) <= set(values)
    names = re.findall(r'"(cl[A-Z]\w+)"', ours)
    slots = re.findall(r"(\w+ \*?)\(\*(\w+)\)\(([^;]*)\);", ours.replace("\n", " "))
    assert len(slots) == len(names) > 20
    functions = []
    for (result, slot, arguments), name in zip(slots, names, strict=True):
        kinds = ", ".join(_official(part) for part in arguments.split(","))
        if name in CALLBACKS:
            kinds = kinds.replace("void *", CALLBACKS[name], 1)
        functions.append(f"{_official(result)} (*official_{slot})({kinds}) = {name};")
    asserts = [f"SAME(OUR_{name}, {theirs});" for name, theirs in CONSTANTS.items()]
    enum = ", ".join(f"OUR_{name} = {values[name]}" for name in CONSTANTS)
    source = tmp_path / "official.c"
    source.write_text(
        "#define CL_TARGET_OPENCL_VERSION 120\n#define CL_USE_DEPRECATED_OPENCL_1_2_APIS\n"
        + OFFICIAL.format(ours=enum, asserts="\n".join(asserts), functions="\n".join(functions))
    )
    found = subprocess.run(
        [compiler(), "-E", "-x", "c", "-"], input="#include <CL/cl.h>", text=True,
        capture_output=True, check=False,
    )  # fmt: skip
    if found.returncode:
        pytest.skip("no CL/cl.h here (Debian: opencl-c-headers)")
    done = subprocess.run(
        [compiler(), "-std=gnu11", "-Wall", "-Werror", "-c", str(source), "-o", os.devnull],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[:2000]
    # the comparison can fail
    right, queue = source.read_text(), "(*official_new_queue)(cl_context, cl_device_id, "
    for ours, wrong in (
        ("OUR_CL_LOG = 0x1183", "OUR_CL_LOG = 0x1184"),
        (f"{queue}cl_bitfield", f"{queue}cl_uint"),
    ):
        assert right.count(ours) == 1
        source.write_text(right.replace(ours, wrong))
        done = subprocess.run(
            [compiler(), "-Werror", "-c", str(source), "-o", os.devnull],
            capture_output=True, check=False,
        )  # fmt: skip
        assert done.returncode != 0


def _official(part: str) -> str:
    words = part.strip()
    whole = {"uint64_t": "cl_bitfield", "void **": "cl_event *"}
    if words in whole:
        return whole[words]
    for own, official in TYPES.items():
        words = re.sub(rf"\b{own}\b", official, words)
    return words.replace("intptr_t", "cl_context_properties")
