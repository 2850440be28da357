"""``edge-train train`` on a terminal: the bar is drawn, Ctrl-C stops, the same command goes on."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from support.runs import heard, run_file


def _on_its_terminal() -> None:
    heard()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Terminal:
    """A command on a pseudo-terminal of 100 columns."""

    def __init__(self, *words: object) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "edge_train", *map(str, words)],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            env={k: v for k, v in os.environ.items() if k != "TQDM_MININTERVAL"},
            preexec_fn=_on_its_terminal,
        )
        os.close(theirs)
        self.text = ""

    def read_until(self, pattern: str) -> None:
        """Reads until the text so far has ``pattern``, for a minute at most."""
        deadline = time.monotonic() + 60
        while not re.search(pattern, self.text):
            assert time.monotonic() < deadline, self.text
            self.text += os.read(self._ours, 4096).decode(errors="replace")

    def press(self, keys: bytes) -> None:
        os.write(self._ours, keys)

    def finish(self) -> int:
        """Reads to the end; the exit code."""
        try:
            while data := os.read(self._ours, 4096):
                self.text += data.decode(errors="replace")
        except OSError:  # the other end is closed
            pass
        os.close(self._ours)
        return self._process.wait(timeout=60)


@pytest.mark.slow
def test_a_bar_is_drawn_ctrl_c_stops_and_the_same_command_goes_on(tmp_path: Path) -> None:
    path = run_file(tmp_path)
    words = ("train", path, "--set", "evaluation.every=100000", "--epochs", 60)
    first = Terminal(*words)
    first.read_until(r"\d+%\|.*\| +\d+/2700  loss \d")
    first.press(b"\x03")
    assert first.finish() == 75
    assert "ended  interrupted" in first.text
    stopped = int(re.search(r"steps  (\d+) ", first.text)[1])  # type: ignore[index]
    assert 0 < stopped < 2700
    again = Terminal(*words)
    assert again.finish() == 0
    assert f"resumed: from step {stopped}" in again.text
    assert f"steps  2700 (epoch 60), {stopped} of them before" in again.text
    assert re.search(r"100%\|.+\| 2700/2700", again.text)
