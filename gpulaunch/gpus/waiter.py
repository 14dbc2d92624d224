"""Waits for a lease that another launcher holds; see `lease` for what the two say to each other."""

from __future__ import annotations

import contextlib
import os
import socket
from typing import Literal

from gpulaunch.farside.wire import peer, receive
from gpulaunch.gpus import lockfile
from gpulaunch.gpus.allowance import AllowedLeases, UncountedError
from gpulaunch.gpus.lease import WANTS, WANTS_NOT, Lease, lock_passed
from gpulaunch.gpus.names import NameHeldError, connect_patiently, listening_socket

POLL = 2.0
"""Seconds between two looks at a lease whose holder cannot be watched."""
UNLIMITED = AllowedLeases(None)


class Waiter:
    """Waits for a lease that another holds, without polling wherever the kernel can wake us."""

    def __init__(
        self, name: str, link: socket.socket | None, want: bool, allowed: AllowedLeases = UNLIMITED
    ) -> None:
        self._name = name
        self._allowed = allowed
        self._link = link
        self._timer = -1 if link else _timer(POLL)
        self._want = False
        self.want(want)

    @classmethod
    def connect(
        cls,
        name: str,
        want: bool = False,
        by_clock: bool = False,
        allowed: AllowedLeases = UNLIMITED,
    ) -> Waiter | None:
        """Return a Waiter for the lease of this name; None if nobody holds it any more: take it.

        `want`: this launcher holds no card, and would like this one. `by_clock`: do not connect to
        its holder. `allowed`: whether a lease that is handed over may be kept.
        """
        if by_clock:
            return cls(name, None, want)
        try:
            link, taken = connect_patiently(name)
        except OSError:  # too many wait there unaccepted, or it is forbidden: try again later
            return cls(name, None, want)
        # Nothing announces the end of a lock in another container, or of a bind without a listen:
        # without a link the Waiter goes by the clock.
        if not taken and not os.environ.get(lockfile.VARIABLE):
            return None
        return cls(name, link, want, allowed)

    def fileno(self) -> int:
        return self._link.fileno() if self._link else self._timer

    @property
    def holder(self) -> tuple[int, int] | None:
        """PID and user id of the holder when this Waiter connected; None if it did not connect."""
        return peer(self._link) if self._link else None

    def want(self, want: bool) -> None:
        """Say whether this launcher holds no card and would like to be handed this one."""
        if self._link is None or want == self._want:
            return
        self._want = want
        # A holder that is gone, or does not read, shows at the next on_readable.
        with contextlib.suppress(OSError):
            self._link.send(WANTS if want else WANTS_NOT)

    def on_readable(self) -> Lease | Literal["gone", "odd", "perhaps", "still"]:
        """Return the lease if it was handed to us; "gone": try to take it; "still": wait on.

        "perhaps": the holder cannot be watched, so try now and then. "odd": the holder is no
        launcher, and may send such things for ever: close, and wait by the clock.
        """
        if self._link is None:
            return "perhaps"
        try:
            said, fds = receive(self._link, 1, 4)
        except BlockingIOError:
            return "still"
        except OSError:
            return "gone"
        if not fds:
            return "odd" if said else "gone"
        # Where it cannot be counted, it is not kept.
        with contextlib.suppress(UncountedError), self._allowed.claiming(self._name) as may:
            if may:
                return self._receive(fds) or "odd"
        for fd in fds:
            os.close(fd)
        return "gone"

    def close(self) -> None:
        if self._link is not None:
            self._link.close()
        elif self._timer >= 0:
            os.close(self._timer)
            self._timer = -1

    def _receive(self, fds: list[int]) -> Lease | None:
        """Return a lease from the descriptors that came; if they are none, close them: None."""
        with contextlib.ExitStack() as undo:
            for fd in fds[1:]:
                undo.callback(os.close, fd)
            try:
                sock = undo.enter_context(listening_socket(fds[0], self._name))
                locked = lock_passed(self._name, fds[1:])
            except (OSError, NameHeldError):
                return None
            undo.pop_all()
        for fd in fds[1:]:
            if fd != locked:
                os.close(fd)
        return Lease(self._name, sock, locked)


def _timer(seconds: float) -> int:
    """Return a descriptor that is readable after so many seconds (os.timerfd_create is 3.13's)."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    fd: int = libc.timerfd_create(1, os.O_CLOEXEC | os.O_NONBLOCK)  # 1: CLOCK_MONOTONIC
    if fd < 0:
        raise OSError(ctypes.get_errno(), "timerfd")
    spec = (ctypes.c_long * 4)(0, 0, int(seconds), int(seconds % 1 * 1e9))
    if libc.timerfd_settime(fd, 0, ctypes.byref(spec), None) < 0:
        os.close(fd)
        raise OSError(ctypes.get_errno(), "timerfd")
    return fd
