"""Changes that must not end halfway: handlers of signals wait until they are made.

Ctrl-C raises KeyboardInterrupt between any two instructions of the main thread, and so do timers
and SIGTERM handlers that raise. In the middle of an update it would leave half of the new weights,
or all of them with the old step count.
"""

from __future__ import annotations

import os
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
_NAMES = (
    *("SIGINT", "SIGTERM", "SIGHUP", "SIGALRM", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGBREAK"),
    *("SIGVTALRM", "SIGPROF", "SIGXCPU"),
)
_NUMBERS = tuple(int(getattr(signal, name)) for name in _NAMES if hasattr(signal, name))
# ValueError in an interpreter that another program runs
_NOT_OURS = "signal only works in main thread"

Handler = Callable[[int, "FrameType | None"], Any]
#: the block that holds the handlers; only the main thread sets it
_active: Unbroken | None = None


class Unbroken:
    """``with Unbroken():`` handlers of signals run after the block; what they raise comes then.

    Only the main thread runs handlers: in any other this does nothing. Of nested blocks the
    outermost counts. A handler that C put over Python's own of the same signal is lost.
    """

    __slots__ = ("_handlers", "_seen")

    def __init__(self) -> None:
        self._handlers: dict[int, Handler] = {}
        self._seen: list[tuple[Handler, int, FrameType | None]] = []

    def __enter__(self) -> None:
        if threading.get_ident() != threading.main_thread().ident or _is_held():
            return
        try:
            self._hold()
        except BaseException:  # a handler was quicker than we were
            self._release()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        if self._handlers or self._seen:
            self._release()

    def _hold(self) -> None:
        global _active
        _active = self
        for number in _NUMBERS:
            handler = getsignal(number)
            if callable(handler):
                self._handlers[number] = handler
                try:
                    set_handler(number, self._note)
                except ValueError as error:
                    if _NOT_OURS not in str(error):
                        raise
                    del self._handlers[number]

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._seen.append((self._handlers[number], number, frame))

    def _release(self) -> None:
        """Every handler has run and is back, whatever others raise meanwhile: the first error."""
        raised: list[BaseException] = []
        while self._handlers or self._seen:
            try:
                while self._seen:  # the others wait, else one could cut off another at its start
                    handler, number, frame = self._seen.pop(0)
                    handler(number, frame)
                self.restore()
            except BaseException as error:
                raised.append(error)
        if raised:
            raise raised[0]

    def restore(self) -> None:
        """The handlers as they were before, but for those that a handler has set."""
        while self._handlers:
            number, handler = next(iter(self._handlers.items()))
            if getsignal(number) == self._note:
                set_handler(number, handler)
            self._handlers.pop(number, None)


def _is_held() -> bool:
    return _active is not None and bool(_active._handlers)


def _restore_in_child() -> None:
    """Of a fork in another thread than the one in the block, which the child has not got."""
    if _active is not None:
        _active.restore()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_restore_in_child)
