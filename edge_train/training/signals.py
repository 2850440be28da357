"""Signals that ask a run to stop: it finishes its step, saves and leaves."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from edge_train.governor import StopReason

#: systemd stops with SIGTERM; SIGHUP comes when an ssh session or a terminal goes away
_SIGNALS = {
    "SIGINT": StopReason.INTERRUPTED,
    "SIGTERM": StopReason.TERMINATED,
    "SIGHUP": StopReason.TERMINATED,
}


@contextmanager
def stopping(request: Callable[[StopReason], None]) -> Iterator[None]:
    """Within the block a signal calls ``request``; a second SIGINT raises KeyboardInterrupt.

    A signal that the process ignores (nohup) stays ignored. Outside the main thread, where Python
    takes no handlers, nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    seen: list[int] = []

    def handle(number: int, _: FrameType | None) -> None:
        if number == signal.SIGINT and signal.SIGINT in seen:
            raise KeyboardInterrupt
        seen.append(number)
        request(_SIGNALS[signal.Signals(number).name])

    before = {}
    for name in _SIGNALS:
        number = getattr(signal, name, None)  # Windows has no SIGHUP
        if number is not None and signal.getsignal(number) not in (signal.SIG_IGN, None):
            before[number] = signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
