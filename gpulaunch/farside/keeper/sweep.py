"""Kills what is below a keeper, until nothing is left.

A sweep kills direct children alone, again and again until waitpid says ECHILD: their process ids
cannot be recycled, since nobody else reaps them, and the kernel gives us a dead child's children
before we can reap it, so ECHILD proves that no descendant is left.
"""

from __future__ import annotations

import os
import signal
import time

from ..wire import KeeperChannel
from .kernel import children, send_signal

UNKILLABLE_AFTER = 8.0  # seconds


class Sweep:
    """Kills all descendants.

    `kill` sends one round of SIGKILL; `to_the_end` blocks until waitpid reports ECHILD.
    """

    def __init__(self, channel: KeeperChannel, attempt: str | None = None) -> None:
        self.channel = channel
        self.attempt = attempt
        self.since = time.monotonic()
        self.nap = 0.0005
        self.said: set[int] = set()

    def kill(self) -> None:
        pids = children()
        for pid in pids:
            send_signal(pid, signal.SIGKILL)
        self.nap = min(self.nap * 2, 1.0)
        late = time.monotonic() - self.since > UNKILLABLE_AFTER
        # A bounded number of messages: the socket must keep room for the end, read or not.
        if late and len(self.said) < 100 and not self.said.issuperset(pids):
            self.said.update(pids)
            self.channel.send({"is": "unkillable", "attempt": self.attempt, "pids": pids[:200]})

    def to_the_end(self) -> None:
        while True:
            self.kill()
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    self.nap = 0.0005
            except ChildProcessError:
                return
            time.sleep(self.nap)
