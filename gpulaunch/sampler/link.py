"""The sampler's end of the socket to its launcher: news in, findings out. Messages as in `main`."""

from __future__ import annotations

import json
import select
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

LARGEST_MESSAGE = 1 << 16


class LauncherLink:
    """The launcher's other end: one JSON value a message."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        end.setblocking(False)
        self._poll = select.poll()
        self._poll.register(end, select.POLLIN | select.POLLRDHUP)
        self._news: list[dict[str, Any]] = []

    def say(self, said: str, **what: Any) -> bool:
        """Say something; return False where nobody listens, or nobody reads just now."""
        try:
            self._end.send(json.dumps({"said": said, **what}).encode())
        except OSError:
            return False
        return True

    def warn(self, text: str) -> None:
        """Say that something is not recorded."""
        self.say("trouble", text=text)

    def received(self) -> Iterator[dict[str, Any]]:
        """Yield the news that have come in since the last call."""
        self._take_in()
        news, self._news = self._news, []
        yield from news

    def ends_within(self, seconds: float) -> bool:
        """Wait so long; return whether the launcher has closed its end meanwhile.

        News are taken in, for the next look: a launcher that waits for room would wait at its end.
        """
        until = time.monotonic() + seconds
        while ready := self._poll.poll(max(0.0, until - time.monotonic()) * 1000):
            if any(events & ~select.POLLIN for _, events in ready):
                return True
            self._take_in()
        return False

    def _take_in(self) -> None:
        with suppress(OSError):
            while data := self._end.recv(LARGEST_MESSAGE):
                self._news += json.loads(data)
