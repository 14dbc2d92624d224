"""The command on a terminal of its own (a real pty): keys pressed, what it shows read."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.cli.launcher import Launcher
from tests.helpers import goes_along, wait_until

_SEQUENCES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]P][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]*[0-~])")


class Terminal:
    """`raw` is all that came so far, `text` the same without escape sequences."""

    def __init__(self, process: subprocess.Popen[bytes], fd: int) -> None:
        self.process = process
        self._fd = fd
        self._data = b""

    @property
    def raw(self) -> str:
        with suppress(BlockingIOError, OSError):  # EIO: nobody has the other end open
            while data := os.read(self._fd, 1 << 16):
                self._data += data
        return self._data.decode(errors="replace")

    @property
    def text(self) -> str:
        return _SEQUENCES.sub("", self.raw)

    def press(self, keys: str) -> None:
        os.write(self._fd, keys.encode())

    def wait_for(self, text: str) -> None:
        def there() -> bool:
            assert text in self.text or self.process.poll() is None, f"it ended: {self.text!r}"
            return text in self.text

        wait_until(there, 30, text)

    def ended(self) -> int:
        """Its exit status, once it has ended."""
        # What it still writes is read meanwhile: a full terminal would hold it up.
        wait_until(lambda: self.raw is not None and self.process.poll() is not None, 60)
        return int(self.process.returncode)

    def close(self) -> None:
        """Close the window."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def flags(self) -> int:
        """The terminal's own local modes (echo, lines)."""
        return int(termios.tcgetattr(self._fd)[3])


@contextmanager
def terminal(
    launcher: Launcher, *argv: str | Path, columns: int = 90, rows: int = 24, **environ: str
) -> Iterator[Terminal]:
    """The command on a terminal; killed at the end if it still lives."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    os.set_blocking(ours, False)
    given = {"TERM": "xterm-256color", "NO_COLOR": "", **environ}
    process = subprocess.Popen(
        [*launcher.command, *map(str, argv)],
        cwd=launcher.path,
        env={**launcher.environ, **given},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=goes_along(),
    )
    os.close(theirs)
    screen = Terminal(process, ours)
    try:
        yield screen
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait()
        screen.close()
