"""The system: board, operating system, Python, pages, memory."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator

from edge_train import __version__
from edge_train.doctor.check import Check, good, info, warn
from edge_train.doctor.host import Host

#: what importing onnxruntime and one small model need (measured: 110 MB)
_LITTLE_MEMORY = 150 * 2**20


def checks(host: Host) -> Iterator[Check]:
    """Facts of the machine, and what is wrong with its Python or its memory."""
    yield info("edge_train", __version__)
    words = f"{platform.python_implementation()} {platform.python_version()}, {host.system}"
    yield info("Python", words)
    yield info("system", _system(host))
    board = host.text("proc/device-tree/model") or host.text("sys/firmware/devicetree/base/model")
    if board:
        yield info("board", board)
    yield _width(host)
    yield _pages(host)
    yield _memory(host)


def _system(host: Host) -> str:
    release = re.search(r'^PRETTY_NAME="?([^"\n]*)', host.text("etc/os-release"), re.MULTILINE)
    name = release[1] if release else "Linux"
    if host.is_termux:
        name = f"Termux {host.environ.get('TERMUX_VERSION', 'of unknown version')}"
    libc = " ".join(platform.libc_ver()).strip() or "another libc than glibc"
    return f"{name}, kernel {platform.release()}, {libc}"


def _width(host: Host) -> Check:
    words = f"{host.machine}, Python has {host.pointer_bits} bits"
    if host.pointer_bits == 64:
        return good("machine", words)
    route = (
        "onnxruntime has no 32-bit wheel: use a 64-bit system, or Debian trixie's "
        "python3-onnxruntime in a venv made with --system-site-packages"
    )
    if "64" in host.machine or host.machine.startswith("armv8"):
        return warn("machine", f"{words} on a 64-bit kernel", route)
    return warn("machine", words, route)


def _pages(host: Host) -> Check:
    words = f"{host.page_size // 1024} KiB"
    if host.page_size > 16384:
        return warn("page size", words, "not tested: libraries are laid out for up to 16 KiB")
    if host.page_size > 4096:
        return info(
            "page size",
            f"{words}: libraries laid out for 4 KiB do not load here; edge_train's are made for it",
        )
    return good("page size", words)


def _memory(host: Host) -> Check:
    fields = dict(re.findall(r"^(\w+):\s+(\d+) kB", host.text("proc/meminfo"), re.MULTILINE))
    if "MemTotal" not in fields:
        return info("memory", "unknown: /proc/meminfo cannot be read")
    total, available, swap = (
        int(fields.get(name, 0)) * 1024 for name in ("MemTotal", "MemAvailable", "SwapTotal")
    )
    words = f"{_mb(total)}, {_mb(available)} available, swap {_mb(swap)}"
    limit = host.text("sys/fs/cgroup/memory.max")
    if limit.isdecimal():
        words += f", this group may use {_mb(int(limit))}"
        available = min(available, int(limit))
    if available < _LITTLE_MEMORY:
        return warn("memory", words, "end other programs; a small model alone takes 110 MB")
    return good("memory", words)


def _mb(size: int) -> str:
    return f"{size / 2**20:.0f} MB"
