"""Changes that must not end halfway: handlers of signals wait until they are made.

Ctrl-C raises KeyboardInterrupt between any two instructions of the main thread, and so do timers
and SIGTERM handlers that raise. In the middle of an update it would leave half of the new weights,
or all of them with the old step count.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

try:  # the functions under the module signal, whose enums would cost 13 us a step
    from _signal import getsignal  # type: ignore[import-not-found]
    from _signal import signal as set_handler
except ImportError:
    from signal import getsignal
    from signal import signal as set_handler

#: those that scripts raise an exception from, where this system has them
_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGALRM", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGBREAK")
_NUMBERS = tuple(int(getattr(signal, name)) for name in _NAMES if hasattr(signal, name))
# ValueError in an interpreter that another program runs
_NOT_OURS = "signal only works in main thread"

Handler = Callable[[int, "FrameType | None"], Any]


class Unbroken:
    """``with Unbroken():`` handlers of signals run after the block; what they raise comes then.

    Only the main thread runs handlers: in any other this does nothing. Blocks may be nested.
    """

    __slots__ = ("_handlers", "_seen")

    def __init__(self) -> None:
        self._handlers: dict[int, Handler] = {}
        self._seen: list[tuple[Handler, int, FrameType | None]] = []

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        try:
            for number in _NUMBERS:
                handler = getsignal(number)
                if callable(handler):
                    self._handlers[number] = handler
                    set_handler(number, self._note)
        except BaseException as error:
            if _NOT_OURS in str(error):
                self._handlers.clear()
                return
            self._restore()  # a handler was quicker than we were
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self._restore()
        self._deliver()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._seen.append((self._handlers[number], number, frame))

    def _restore(self) -> None:
        """The handlers as before, whatever one of them raises the moment it is back."""
        try:
            while self._handlers:
                number, handler = next(iter(self._handlers.items()))
                set_handler(number, handler)
                del self._handlers[number]
        except BaseException:
            self._restore()
            raise

    def _deliver(self) -> None:
        if self._seen:
            handler, number, frame = self._seen.pop(0)
            try:
                handler(number, frame)
            finally:
                self._deliver()
