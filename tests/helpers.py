"""What several suites need: waiting for a condition without sleeping longer than needed."""

from __future__ import annotations

import time
from collections.abc import Callable
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
