"""The descriptors of items and answers, and items' logs."""

from __future__ import annotations

import fcntl
import json
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ANSWERS = 3
LOADED = 0  # in the place of an item's number: the worker has loaded
HIGH = 64


class ItemPipes:
    """The descriptors of items and answers, at numbers that no program uses by accident."""

    def __init__(self) -> None:
        allowed = os.sysconf("SC_OPEN_MAX")  # the soft limit; -1: there is none
        high = min(HIGH, allowed // 2) if allowed >= 0 else HIGH
        self.fd = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, high)
        self.answers = fcntl.fcntl(ANSWERS, fcntl.F_DUPFD_CLOEXEC, high)
        os.close(ANSWERS)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        if null:
            os.close(null)
        self.rest = b""

    def next(self) -> dict[str, Any] | None:
        """Return the next item; None after the last."""
        while b"\n" not in self.rest:
            try:
                data = os.read(self.fd, 1 << 16)
            except OSError:
                data = b""
            if not data:
                return None
            self.rest += data
        line, _, self.rest = self.rest.partition(b"\n")
        item: dict[str, Any] = json.loads(line.decode())
        return item

    def answer(self, item: int, code: int = 0, spoiled: bool = False, error: str = "") -> None:
        """Send an answer to the keeper; exit if the keeper is gone."""
        words = error.replace("\n", " ").encode("utf-8", "surrogateescape")
        try:
            os.write(self.answers, b"%d %d %d %s\n" % (item, code, spoiled, words))
        except OSError:
            os._exit(0)


def open_log(path: str) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOCTTY | os.O_CLOEXEC
    return os.open(path, flags, 0o600)
