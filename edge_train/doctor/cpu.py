"""The processor: which one, what it can do, how many threads may run."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from edge_train.doctor.check import Check, good, info, warn
from edge_train.doctor.host import Host

_PARTS = {
    0xC07: "Cortex-A7",
    0xC0F: "Cortex-A15",
    0xD03: "Cortex-A53",
    0xD04: "Cortex-A35",
    0xD05: "Cortex-A55",
    0xD07: "Cortex-A57",
    0xD08: "Cortex-A72",
    0xD09: "Cortex-A73",
    0xD0A: "Cortex-A75",
    0xD0B: "Cortex-A76",
    0xD0C: "Neoverse-N1",
    0xD40: "Neoverse-V1",
    0xD41: "Cortex-A78",
    0xD46: "Cortex-A510",
    0xD47: "Cortex-A710",
}
#: what decides speed, in the words of /proc/cpuinfo
_TOLD = (
    *("neon", "vfpv4", "asimd", "fphp", "asimdhp", "asimddp", "atomics", "i8mm", "bf16", "sve"),
    *("sse4_2", "avx", "f16c", "fma", "avx2", "avx512f", "avx512_vnni", "amx_tile"),
)


def checks(host: Host) -> Iterator[Check]:
    """Name, instruction sets, threads."""
    text = host.read("proc/cpuinfo")
    if isinstance(text, OSError):
        why = text.strerror or str(text)
        yield warn(
            "name",
            f"unknown: /proc/cpuinfo cannot be read ({why})",
            "the slowest instruction set is taken; onnxruntime may refuse to start",
        )
    else:
        yield info("name", _name(text))
        there = features(host)
        yield info("features", " ".join(word for word in _TOLD if word in there) or "none known")
    yield _threads(host)


def features(host: Host) -> set[str]:
    """The words of the lines "flags" (x86) or "Features" (ARM)."""
    text = host.text("proc/cpuinfo")
    found = re.findall(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    return set(" ".join(found).split())


def _name(text: str) -> str:
    numbers = re.findall(r"^CPU part\s*:\s*(0x[0-9a-fA-F]+)", text, re.MULTILINE)
    cores = sorted({_PARTS.get(int(part, 16), f"ARM part {part}") for part in numbers})
    told = (
        re.search(rf"^{key}\s*:\s*(.+)$", text, re.MULTILINE)
        for key in ("Model", "model name", "Hardware")
    )
    words = [*cores, *(match[1].strip() for match in told if match)][: len(cores) + 1]
    return ", ".join(words) or "not told by /proc/cpuinfo"


def _threads(host: Host) -> Check:
    there = os.cpu_count() or 1
    try:
        allowed: int | None = len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        allowed = None
    words = f"{there} CPUs, {'all' if allowed in (None, there) else allowed} allowed"
    asked = host.environ.get("OMP_NUM_THREADS", "")
    if asked:
        words += f", OMP_NUM_THREADS={asked}"
    quota, _, period = host.text("sys/fs/cgroup/cpu.max").partition(" ")
    if quota.isdecimal() and period.isdecimal() and int(period) > 0:
        share = int(quota) / int(period)
        words += f", a quota of {share:g}"
        if share < (allowed or there) and not asked:
            number = max(1, int(share))
            return warn("threads", words, f"set OMP_NUM_THREADS={number}: more would wait")
    return good("threads", words)
