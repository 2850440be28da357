"""native/ort_abi.h, our own declarations of onnxruntime's C ABI, against the official header."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

OURS = Path(__file__).parents[2] / "native" / "ort_abi.h"
#: where the header lies: the folder of Debian's libonnxruntime-dev, or another
HEADERS = Path(os.environ.get("EDGE_TRAIN_ORT_HEADERS") or "/usr/include/onnxruntime")
OFFICIAL = HEADERS / "onnxruntime_c_api.h"

pytestmark = [
    pytest.mark.skipif(
        not OFFICIAL.is_file(), reason="no onnxruntime_c_api.h: install libonnxruntime-dev"
    ),
    pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc"),
]

_FUNCTION = re.compile(r"X\((\w+), (\d+), ")
_MEMBER = re.compile(r"\(\*(\w+)\)\(")
_CONSTANTS = {
    "ORT_FAIL": "ORT_FAIL",
    "ORT_INVALID_ARGUMENT": "ORT_INVALID_ARGUMENT",
    "ORT_FLOAT": "ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT",
    "ORT_UINT8": "ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8",
    "ORT_INT32": "ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32",
    "ORT_INT64": "ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64",
    "ORT_BOOL": "ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL",
    "ORT_REQUIRED": "INPUT_OUTPUT_REQUIRED",
    "ORT_OPTIONAL": "INPUT_OUTPUT_OPTIONAL",
    "ORT_VARIADIC": "INPUT_OUTPUT_VARIADIC",
    "ORT_MEM_DEFAULT": "OrtMemTypeDefault",
    "ORT_ARENA_ALLOCATOR": "OrtArenaAllocator",
}


def _constants() -> dict[str, int]:
    text = OURS.read_text(encoding="utf-8")
    found = {}
    for body in re.findall(r"enum \{([^}]*)\};", text):
        found.update({k: int(v) for k, v in re.findall(r"(ORT_\w+) = (\d+)", body)})
    return found


def _members() -> list[str]:
    text = OURS.read_text(encoding="utf-8")
    struct = text[text.index("struct OrtCustomOp {") :]
    return ["version", *_MEMBER.findall(struct[: struct.index("\n};")])]


def _answers(tmp_path: Path, lines: list[str]) -> list[int]:
    """The values of C expressions under the official header."""
    source, program = tmp_path / "ask.c", tmp_path / "ask"
    body = "".join(f'  printf("%zu\\n", (size_t)({line}));\n' for line in lines)
    source.write_text(
        "#include <stddef.h>\n#include <stdio.h>\n#include <onnxruntime_c_api.h>\n"
        f"int main(void) {{\n{body}  return 0;\n}}\n"
    )
    subprocess.run(["gcc", "-w", f"-I{HEADERS}", str(source), "-o", str(program)], check=True)
    out = subprocess.run([str(program)], check=True, capture_output=True, text=True)
    return [int(line) for line in out.stdout.split()]


def test_functions_stand_in_their_slots(tmp_path: Path) -> None:
    slots = dict(_FUNCTION.findall(OURS.read_text(encoding="utf-8")))
    places = _answers(tmp_path, [f"offsetof(OrtApi, {name}) / sizeof(void *)" for name in slots])
    assert len(slots) > 20
    assert dict(zip(slots, places, strict=True)) == {k: int(v) for k, v in slots.items()}


def test_the_custom_op_has_the_same_members(tmp_path: Path) -> None:
    members = _members()
    places = _answers(tmp_path, [f"offsetof(OrtCustomOp, {name})" for name in members])
    pointer = _answers(tmp_path, ["sizeof(void *)"])[0]
    assert places == [0, *(pointer * (1 + i) for i in range(len(members) - 1))]


def test_constants_are_equal(tmp_path: Path) -> None:
    ours = _constants()
    assert set(ours) == set(_CONSTANTS)
    values = _answers(tmp_path, [_CONSTANTS[name] for name in ours])
    assert dict(zip(ours, values, strict=True)) == ours


def test_argument_types_are_those_of_the_header(tmp_path: Path) -> None:
    """The compiler holds each of our prototypes against the official one."""
    text = OURS.read_text(encoding="utf-8")
    functions = text[
        text.index("#define ORT_FUNCTIONS") : text.index("typedef struct OrtCustomOp OrtCustomOp;")
    ]
    # enums are ints in our declarations, const and const-less tables the same
    source = tmp_path / "types.c"
    source.write_text(
        f"#include <onnxruntime_c_api.h>\n{functions}\n"
        "#define CHECK(name, slot, result, arguments) \\\n"
        "  static __typeof__(result(*) arguments) ours_##name;\n"
        "ORT_FUNCTIONS(CHECK)\n"
        "#define SET(name, slot, result, arguments) ours_##name = api->name;\n"
        "void set(const OrtApi *api) { ORT_FUNCTIONS(SET) }\n"
    )
    flags = [
        "-std=gnu11",
        "-Werror=incompatible-pointer-types",
        "-Wno-unused",
        "-c",
        "-o",
        "/dev/null",
    ]
    done = subprocess.run(
        ["gcc", f"-I{HEADERS}", *flags, str(source)], capture_output=True, text=True, check=False
    )
    wrong = [line for line in done.stderr.splitlines() if "error" in line]
    assert not wrong
