"""What several suites need: waiting for a condition without sleeping longer than needed."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

T = TypeVar("T")


def wait_until(condition: Callable[[], T], deadline: float = 20.0, what: str = "") -> T:
    """The first true value of `condition`, asked every few ms; fails after `deadline` seconds."""
    end = time.monotonic() + deadline
    pause = 0.001
    while True:
        if value := condition():
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not within {deadline} s: {what or condition}")
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)


@contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    """This process can open so many more, and no more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(int(fd) for fd in os.listdir("/proc/self/fd")) + count + 2
    resource.setrlimit(resource.RLIMIT_NOFILE, (used, hard))
    taken: list[int] = []
    try:
        with suppress(OSError):
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC))
        for _ in range(count):
            os.close(taken.pop())
        yield
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
