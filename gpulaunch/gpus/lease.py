"""Leases: who may use a card, held in the kernel for as long as any descriptor of it is open.

    holder                                    waiter
    take(key) ── listening socket ◀─connect── Waiter.connect(name, want)
      on_readable(): accept, read   ◀─ "w" ── holds no card and wants this one   ("-": no longer)
      hand_over(): the socket itself ─ SCM_RIGHTS ─▶ on_readable() -> Lease
      close(), or death of all holders ─ hangup ───▶ on_readable() -> "gone": take(key) again
      anything else                    ────────────▶ on_readable() -> "odd": wait by the clock

A lease is the listening socket `\\0gpulaunch/1/gpu/<key>`. The launcher, its keepers and the job
hold it open: it outlives any of them and never the last. Whoever waits is connected to it, accepted
or not, and is woken by the end of the last. Where GPULAUNCH_LEASE_DIR is set, a locked file is held
beside it (containers have abstract names of their own).

Any user may bind a card's name and answer whatever they like: nothing that comes from there is a
lease unless the kernel says so, and no answer costs a waiter more than a look every few seconds.

Never looks at the card itself: whether a stranger uses it is the driver's to say (`discover`). Also
counts the leases of a user, where launchers of that user may only hold so many together.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from resource import RLIMIT_NOFILE, getrlimit
from typing import Literal, TypeAlias

from msgspec import Struct

from gpulaunch.agent.proc import is_suspended
from gpulaunch.agent.wire import peer, receive
from gpulaunch.base.errors import GpulaunchError
from gpulaunch.gpus import socket_locks
from gpulaunch.gpus.socket_locks import (
    UNKNOWN,
    Holder,
    NameHeldError,
    bind_name,
    connect_name,
    connect_patiently,
    have_open,
    holder_of,
    listening,
    listening_socket,
    short,
    try_bind,
)
from gpulaunch.jobfile.config_model import Allowance

SCOPE_VARIABLE = "GPULAUNCH_LEASED"
VISITORS = 32
"""Connections that a lease keeps open at most; the user with the most loses some to others."""
POLL = 2.0
"""Seconds between two looks at a lease whose holder cannot be watched."""
_SHARE = 32  # one lease may use 1/32 of this process's descriptors
_ROUNDS = 2 * VISITORS
WANTS, WANTS_NOT, _YOURS = b"w", b"-", b"L"

Claim: TypeAlias = Callable[[str], AbstractContextManager[bool]]
"""Tells, of a lease's name and as long as that is so, whether this launcher may keep that lease."""


class UncountedError(OSError):
    """The user's leases cannot be counted now: another process holds the right to."""


def unlimited(name: str) -> AbstractContextManager[bool]:
    """Allow every lease: a Claim."""
    return nullcontext(True)


def scope_of(environ: Mapping[str, str]) -> str:
    """Return the job below whose lease this process leases cards; empty outside of gpulaunch."""
    return environ.get(SCOPE_VARIABLE, "")


def lease_name(key: str, scope: str = "") -> str:
    """Return the name of a card's lease, without `gpulaunch/1/`."""
    return f"{_below(scope)}gpu/{key}"


def gather_name(scope: str = "") -> str:
    """Return the name of the right to hold cards idle until a wide job has enough of them."""
    return f"{_below(scope)}gather"


def take(key: str, scope: str = "") -> Lease:
    """Take a card's lease and return it, at once or not at all.

    Raises NameHeldError, which names the holder; OSError if it is unknown whether the lease is
    free (UnfitLockError, or too few descriptors).
    """
    return take_name(lease_name(key, scope))


def take_gather(scope: str = "") -> Lease:
    """Take the right to gather cards. Raises NameHeldError."""
    return take_name(gather_name(scope))


def take_name(name: str) -> Lease:
    sock = bind_name(name)
    try:
        locked = _lock(name)
        return Lease(name, sock, locked)
    except BaseException:
        sock.close()
        raise


def holders(scope: str = "") -> dict[str, Holder]:
    """Return the holder of each leased key, of all launchers in this network namespace."""
    prefix = lease_name("", scope)
    found = {name.removeprefix(prefix): holder_of(name) for name in listening(prefix)}
    return {key: holder for key, holder in found.items() if holder}


class Visitor(Struct, frozen=True):
    """A launcher that waits for a lease: its connection and its user id."""

    link: socket.socket
    uid: int


class Lease:
    """A lease this process holds. Close it, hand it over, or leave it to those that inherited it.

    The descriptors in `filenos()` are what keepers and jobs must hold open as well. A loop watches
    `fileno()` and calls `on_readable` when it is readable.
    """

    def __init__(self, name: str, sock: socket.socket, locked: int | None) -> None:
        self.name = name
        self._sock = sock
        self._locked = locked
        self._wanting: dict[int, None] = {}  # in the order in which they began to want
        self._visitors: dict[int, Visitor] = {}
        self._most = max(1, min(VISITORS, getrlimit(RLIMIT_NOFILE)[0] // _SHARE))
        # One descriptor for the loop, however many visit.
        self._poll = select.epoll()
        self._accepting = False
        self._accept_more(True)

    def __repr__(self) -> str:
        return f"<Lease {self.name}>"

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        return self._sock.fileno() < 0

    @property
    def wanted(self) -> bool:
        """True while a launcher that holds no card would like to be handed this lease."""
        return bool(self._wanting)

    def fileno(self) -> int:
        return self._poll.fileno()

    def filenos(self) -> tuple[int, ...]:
        own = self._sock.fileno()
        return (own,) if self._locked is None else (own, self._locked)

    def on_readable(self) -> bool:
        """Handle new and closed connections and their messages; return `wanted`."""
        for _ in range(_ROUNDS):  # bounded: a visitor could send without end
            events = self._poll.poll(0)
            for fd, _ in events:
                if fd == self._sock.fileno():
                    self._accept()
                elif fd in self._visitors:
                    self._read(fd)
            if not events:
                break
        return self.wanted

    def hand_over(self) -> bool:
        """Pass the lease to the launcher that has wanted it longest, and close this one.

        The open socket itself travels, so that nobody can take the name in between. Only for a
        lease that no keeper or job holds any more. Returns False if nobody wanted it: it was just
        closed. A stopped launcher gets none: it would hold the card unused until it continues.
        """
        self._accept_more(True)
        self.on_readable()
        try:
            return any(self._give(fd) for fd in list(self._wanting))
        finally:
            self.close()

    def close(self) -> None:
        """Close this process's copy. The card is free once all others are closed. Idempotent."""
        if self.closed:
            return
        # The lock first: the hangup wakes those who wait, and they must find the card free.
        if self._locked is not None:
            os.close(self._locked)
            self._locked = None
        self._sock.close()
        self._poll.close()
        for visitor in self._visitors.values():
            visitor.link.close()
        self._visitors.clear()
        self._wanting.clear()

    def _give(self, fd: int) -> bool:
        link = self._visitors[fd].link
        try:
            if is_suspended(peer(link)[0]):
                return False
            socket.send_fds(link, [_YOURS], list(self.filenos()))
        except OSError:
            self._forget(fd)
            return False
        return True

    def _accept(self) -> None:
        try:
            link, _ = self._sock.accept()
        except BlockingIOError:
            return
        except OSError:
            # No descriptor left. The end of the lease wakes those in the kernel's queue anyway.
            self._accept_more(False)
            return
        uid = peer(link)[1]
        if len(self._visitors) >= self._most and not self._make_room(uid):
            link.close()  # that launcher looks again in a while, by the clock
            return
        link.setblocking(False)
        self._visitors[link.fileno()] = Visitor(link, uid)
        self._poll.register(link.fileno(), select.EPOLLIN)

    def _make_room(self, uid: int) -> bool:
        """Drop the newest visitor of the user with the most; False if that user is `uid`."""
        crowds = Counter(visitor.uid for visitor in self._visitors.values())
        crowd, many = crowds.most_common(1)[0]
        if crowds[uid] + 1 >= many:
            return False
        self._forget(next(fd for fd, each in reversed(self._visitors.items()) if each.uid == crowd))
        return True

    def _read(self, fd: int) -> None:
        try:
            said = self._visitors[fd].link.recv(256)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        if not said:
            self._forget(fd)
        elif said.endswith(WANTS):
            self._wanting[fd] = None
        elif said.endswith(WANTS_NOT):
            self._wanting.pop(fd, None)

    def _forget(self, fd: int) -> None:
        self._wanting.pop(fd, None)
        self._poll.unregister(fd)
        self._visitors.pop(fd).link.close()
        self._accept_more(True)

    def _accept_more(self, on: bool) -> None:
        if on and not self._accepting:
            self._poll.register(self._sock.fileno(), select.EPOLLIN)
        elif self._accepting and not on:
            self._poll.unregister(self._sock.fileno())
        self._accepting = on


class Waiter:
    """Waits for a lease that another holds, without polling wherever the kernel can wake us."""

    def __init__(
        self, name: str, link: socket.socket | None, want: bool, claim: Claim = unlimited
    ) -> None:
        self._name = name
        self._claim = claim
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
        claim: Claim = unlimited,
    ) -> Waiter | None:
        """Return a Waiter for the lease of this name; None if nobody holds it any more: take it.

        `want`: this launcher holds no card, and would like this one. `by_clock`: do not connect to
        its holder. `claim`: tells whether a lease that is handed over may be kept.
        """
        if by_clock:
            return cls(name, None, want)
        try:
            link, taken = connect_patiently(name)
        except OSError:  # too many wait there unaccepted, or it is forbidden: try again later
            return cls(name, None, want)
        # Nothing announces the end of a lock in another container, or of a bind without a listen:
        # without a link the Waiter goes by the clock.
        if not taken and not os.environ.get(socket_locks.VARIABLE):
            return None
        return cls(name, link, want, claim)

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
        with contextlib.suppress(UncountedError), self._claim(self._name) as may:
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


def _lock(name: str) -> int | None:
    """Lock the file beside the socket and return it; None if no lock files are asked for.

    Raises NameHeldError, or UnfitLockError if the file cannot be locked.
    """
    directory = os.environ.get(socket_locks.VARIABLE)
    if not directory:
        return None
    locked = socket_locks.lock(directory, _file(name))
    if locked is None:
        raise NameHeldError(name, UNKNOWN)
    return locked


def lock_passed(name: str, fds: Sequence[int]) -> int | None:
    """Return the one of these descriptors that holds the lock; without one, as `_lock`."""
    directory = os.environ.get(socket_locks.VARIABLE)
    for fd in fds if directory else ():
        if socket_locks.holds(fd, str(directory), _file(name)):
            return fd
    return _lock(name)


def _file(name: str) -> str:
    return name.removeprefix("gpu/")


def _below(scope: str) -> str:
    return f"sub/{short(scope)}/" if scope else ""


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


# ── The allowance of a user ───────────────────────────────────────────────────────────────────────

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
    """Takes leases as long as this user's are fewer than `allowance`; None: without a limit.

    take ─▶ alone among the user's launchers ─▶ count the user's leases ─▶ take one more, or none

    The kernel says who holds a lease (`socket_locks`), so that what counts are the leases
    themselves: nothing is written anywhere, and what a killed launcher held is free with its last
    process. One launcher of a user at a time counts and takes, while it holds the name `count/UID`:
    of two that come in the same instant the second counts what the first has taken.

    A launcher keeps to it of its own accord, as launchers do with leases: a program that uses cards
    without one is not counted. Nor are pretend cards, leases below a job's own cards, and those in
    another network namespace.
    """

    def __init__(self, allowance: Allowance | None) -> None:
        self.allowance = allowance

    def take(self, key: str, scope: str) -> Lease:
        """Take a card's lease as the function `take` does.

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
