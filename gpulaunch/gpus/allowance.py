"""How many cards all launchers of a user may hold at once, and how each of them keeps to it.

    take ─▶ alone among the user's launchers ─▶ count the user's leases ─▶ take one more, or none

The kernel says who holds a lease (`names`), so that what counts are the leases themselves: nothing
is written anywhere, and what a killed launcher held is free with its last process. One launcher of
a user at a time counts and takes, while it holds the name `count/UID`: of two that come in the same
instant the second counts what the first has taken.

A launcher keeps to it of its own accord, as launchers do with leases: a program that uses cards
without one is not counted. Nor are pretend cards, leases below a job's own cards, and those in
another network namespace.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress

from gpulaunch.config.model import Allowance
from gpulaunch.errors import GpulaunchError
from gpulaunch.farside.wire import peer
from gpulaunch.gpus.lease import Lease, UncountedError, lease_name, take
from gpulaunch.gpus.names import (
    UNKNOWN,
    connect_name,
    have_open,
    holder_of,
    listening,
    try_bind,
)

COUNT_TIMEOUT = 0.5
"""Seconds that a launcher waits at most for another of its user to count and take a card."""
COUNT_HASTE = 0.1
"""Seconds, the last of these, in which it does not sleep between two tries.

Who counts again and again takes the right anew before one that sleeps is awake, each time.
"""


class AllowanceSpentError(GpulaunchError):
    """The user's launchers hold as many cards as they may."""

    def __init__(self, allowance: Allowance) -> None:
        super().__init__(f"{allowance.limit} cards are held, and {allowance.source} allows no more")
        self.allowance = allowance


class AllowedLeases:
    """Takes leases as long as this user's are fewer than `allowance`; None: without a limit."""

    def __init__(self, allowance: Allowance | None) -> None:
        self.allowance = allowance

    def take(self, key: str, scope: str) -> Lease:
        """Take a card's lease as `lease.take` does.

        Raises AllowanceSpentError where it would be one too many, UncountedError.
        """
        if self.allowance is None:
            return take(key, scope)
        with _alone():
            others = [n for n in leases_of(os.geteuid()) if n != lease_name(key, scope)]
            if len(others) >= self.allowance.limit:
                raise AllowanceSpentError(self.allowance)
            return take(key, scope)

    @contextmanager
    def claiming(self, name: str) -> Iterator[bool]:
        """Tell, as long as it is so, whether the lease that somebody gives us may become ours."""
        # One of this user's counts already. Whose it is, is asked of the kernel now: a connection
        # tells whose it was when that began, and may have reached the next holder unaccepted.
        if self.allowance is None or _holder(name) == os.geteuid():
            yield True
            return
        with _alone():
            yield len(leases_of(os.geteuid())) < self.allowance.limit


def leases_of(uid: int) -> list[str]:
    """Return the names of the cards' leases that processes of this user hold."""
    return [name for name in listening("gpu/") if _counts(name) and _is_held_by(uid, name)]


def _counts(name: str) -> bool:
    return not name.startswith("gpu/sim/")


def _is_held_by(uid: int, name: str) -> bool:
    holder = _holder(name)
    return holder == uid or (holder == UNKNOWN.uid and bool(have_open(name, _processes_of(uid))))


def _holder(name: str) -> int | None:
    """Return the user id of who holds the lease; None where nobody does.

    UNKNOWN.uid where no connection is to be had: every count leaves one, which a command that holds
    the lease never accepts, and the kernel keeps 4096.
    """
    try:
        link = connect_name(name)
    except OSError:
        return UNKNOWN.uid
    if link is None:
        return None
    with link:
        return peer(link)[1]


def _processes_of(uid: int) -> Iterator[int]:
    with os.scandir("/proc") as entries:
        for entry in entries:
            with suppress(OSError):
                if entry.name.isdigit() and entry.stat().st_uid == uid:
                    yield int(entry.name)


@contextmanager
def _alone() -> Iterator[None]:
    """Be the only launcher of this user that counts, for a moment. Raises UncountedError.

    If another user holds the name, it may be for ever: then launchers count without it.
    """
    name, until = f"count/{os.geteuid()}", time.monotonic() + COUNT_TIMEOUT
    right: AbstractContextManager[object] | None = None
    while right is None:
        right = try_bind(name) or _await_end(name, until)
    with right:
        yield


def _await_end(name: str, until: float) -> AbstractContextManager[object] | None:
    """Wait until nobody holds the name any more; its end wakes who is connected to it.

    If another user holds it, return at once what stands for it.
    """
    left = until - time.monotonic()
    if left <= 0:
        holder = holder_of(name) or "another launcher"
        raise UncountedError(0, f"whether one more is allowed is asked by {holder}")
    if left <= COUNT_HASTE:
        os.sched_yield()
        return None
    with suppress(OSError):
        if link := connect_name(name):
            with link:
                if peer(link)[1] != os.geteuid():
                    return nullcontext()
                poll = select.poll()
                poll.register(link, select.POLLIN)
                poll.poll((left - COUNT_HASTE) * 1000)
    return None
