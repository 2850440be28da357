"""One training step of the demo's network, in a child process."""

from __future__ import annotations

import json
from collections.abc import Iterator

from edge_train.doctor.check import Check, bad, good, info, warn
from edge_train.doctor.host import Host


def checks(host: Host) -> Iterator[Check]:
    """Whether a step works here, with which kernels, and what it costs."""
    ended = host.run(["-m", "edge_train.doctor.step"])
    try:
        told = json.loads(ended.out)
        yield good("kernels", _kernels(told))
        yield good("threads used", str(told["threads"]))
        words = f"loss {told['before']:.4f}, after it {told['after']:.4f}"
        cost = f"{told['milliseconds']:.1f} ms, peak memory {told['peak'] / 2**20:.0f} MB"
        if told["after"] < told["before"]:
            yield good("training step", f"{words}; {cost}")
        else:
            yield bad("training step", f"{words}; {cost}", "the numbers are wrong: report this")
    except (ValueError, KeyError, TypeError):
        yield bad("training step", _why(ended.code, ended.signal, ended.err), _remedy(ended.signal))
        return
    noise = [line for line in ended.err.splitlines() if line.strip()]
    if any("already registered" in line for line in noise):
        yield info("stderr", f"{len(noise)} lines of Debian's onnxruntime, which do no harm")
    elif noise:
        yield warn("stderr", f"{len(noise)} lines, the first: {noise[0][:200]}")


def _kernels(told: dict[str, object]) -> str:
    library = told.get("library")
    words = f"{told['kernels']}, library {library}" if library else f"{told['kernels']}"
    if library is None:
        words += ", no native library for this machine (tools/build_kernels.py makes it)"
    return words


def _why(code: int, signal: str, err: str) -> str:
    last = next((line.strip() for line in reversed(err.splitlines()) if line.strip()), "")
    ended = f"ended by {signal}" if signal else f"exit code {code}"
    return f"{ended}{': ' if last else ''}{last[:300]}"


def _remedy(signal: str) -> str:
    if signal == "SIGKILL":
        return "the system ended it, most likely for memory: end other programs"
    if signal == "SIGILL":
        return "a library has instructions that this processor lacks: see the packages above"
    return "see what failed above; else report this with the whole output"
