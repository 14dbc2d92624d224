"""Holds leases beside a command until a time, and ends all of the command's processes then.

    launcher, in the terminal's foreground ──life──▶ guard: the leases, the time ──▶ CMD
        waits; passes on the status        ◀─news──    a child of the launcher,       in the
        and is what Ctrl-Z stops                       in a group of its own          foreground

The guard is a fork of the launcher in a process group of its own, so that no key of the terminal
stops it: the time ends the leases whatever the launcher does. The command is the guard's child and
in the launcher's group, as if there were nothing between it and the shell.

Both adopt orphans. When the launcher dies, its end of `life` closes and the guard ends everything;
when the guard is killed, the launcher inherits what is left and does the same. The command also has
the leases open: they are free when nothing of it is alive, and not before.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Literal, NoReturn, TypeAlias

from msgspec import Struct

from gpulaunch.farside.kernel import (
    PR_SET_CHILD_SUBREAPER,
    PR_SET_PDEATHSIG,
    Waker,
    children,
    prctl,
    rename,
    send_signal,
)
from gpulaunch.farside.proc import children_of
from gpulaunch.gpus.names import BACKLOG

LOOK_AGAIN = 60.0
"""Seconds after which the time is looked at again, at most: timers stand still in sleep."""
_NAP = 0.02
"""Seconds between two looks at what is left, once it is killed."""
_OURS: tuple[signal.Signals, ...] = (
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTSTP,
    signal.SIGTTIN,
    signal.SIGTTOU,
)
_ENDING = (signal.SIGTERM, signal.SIGHUP)

By: TypeAlias = Literal["command", "time", "launcher", "signal", "guard"]
"""What ended it: the command itself, the time, whoever waits for the guard, a signal to the guard;
`guard`: the guard was killed."""


class HoldEnd(Struct, frozen=True):
    """How it ended. `status`: the command's, as a shell has it; `error`: of an exec that failed."""

    by: By
    status: int | None = None
    error: int | None = None


class Held(Struct, frozen=True):
    """What is held for how long: the leases' `descriptors`, beside CMD unless `argv` is empty.

    `seconds`: None is without an end. `grace`: seconds from TERM to KILL.
    """

    argv: Sequence[str]
    environ: Mapping[str, str]
    descriptors: Sequence[int]
    seconds: float | None
    grace: float


def boottime() -> float:
    """Return seconds since boot, those asleep included; no setting of the clock changes them."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Guarded:
    """The launcher's side of a guard: `wait` for its end, or `end` it."""

    def __init__(self, held: Held) -> None:
        """Start the guard, and CMD below it.

        The guard has the descriptors from now on: the caller closes its own copies of them.
        """
        self._grace = held.grace
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        theirs, self._life = os.pipe2(os.O_CLOEXEC)
        self._news, news = os.pipe2(os.O_CLOEXEC)
        before = {number: signal.getsignal(number) for number in (*_OURS, *_ENDING)}
        group = os.getpgrp()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._life)
            os.close(self._news)
            _run(_Guard(held, theirs, news, group, before))
        os.close(theirs)
        os.close(news)

    def end(self) -> None:
        """Have the guard end everything; `wait` returns once it has. Idempotent."""
        if self._life >= 0:
            os.close(self._life)
            self._life = -1

    def wait(self) -> HoldEnd:
        """Wait until nothing is left of the command and the guard; return how it ended."""
        said = b""
        while data := os.read(self._news, 4096):
            said += data
        os.close(self._news)
        self.end()
        if not said:
            _Ending(self._grace).to_the_end()
            return HoldEnd("guard")
        while True:  # the guard has nothing left to do but to exit
            try:
                if os.waitpid(-1, 0)[0] == self.pid:
                    return HoldEnd(**json.loads(said))
            except ChildProcessError:
                return HoldEnd(**json.loads(said))


@contextmanager
def terminal_as_before() -> Iterator[None]:
    """Give the terminal its modes back, and its foreground to this group, if it has them now.

    A shell that was killed leaves the terminal without echo.
    """
    import termios

    try:
        modes = termios.tcgetattr(0) if os.tcgetpgrp(0) == os.getpgrp() else None
    except (OSError, termios.error):
        modes = None
    try:
        yield
    finally:
        if modes is not None:
            before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
            with suppress(OSError, termios.error):  # the terminal is gone
                os.tcsetpgrp(0, os.getpgrp())
                termios.tcsetattr(0, termios.TCSADRAIN, modes)
            signal.signal(signal.SIGTTOU, before)


def _run(guard: _Guard) -> NoReturn:
    status = 1
    try:
        guard.run()
        status = 0
    finally:
        os._exit(status)


class _Ending:
    """Ends all descendants: TERM, then KILL after the grace, until nothing is left."""

    def __init__(self, grace: float) -> None:
        for pid in descendants():
            send_signal(pid, signal.SIGTERM)
            send_signal(pid, signal.SIGCONT)
            if ignores(pid, signal.SIGTERM):  # a shell at a terminal does: it hears of its end
                send_signal(pid, signal.SIGHUP)
        self._kill_at = boottime() + grace

    @property
    def patience(self) -> float:
        """Seconds until it is to be looked at again."""
        left = self._kill_at - boottime()
        return min(LOOK_AGAIN, left) if left > 0 else _NAP

    def look(self) -> None:
        """Kill what is left, once the grace is over.

        Direct children alone: nobody else reaps them, so that no other process has their number.
        """
        if boottime() >= self._kill_at:
            for pid in children():
                send_signal(pid, signal.SIGKILL)

    def to_the_end(self) -> None:
        """Wait until no child is left."""
        waker = Waker()
        while True:
            self.look()
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                return
            select.select([waker.fd], [], [], self.patience)
            waker.clear()


class _Guard:
    """The guard's own side; `run` returns once nothing is left and that was told."""

    def __init__(
        self,
        held: Held,
        life: int,
        news: int,
        group: int,
        before: Mapping[signal.Signals, Any],
    ) -> None:
        self._held = held
        self._until = None if held.seconds is None else boottime() + held.seconds
        self._life, self._news = life, news
        self._group = group
        self._before = before
        self._asked = False
        self._main: int | None = None
        self._status: int | None = None
        self._error: int | None = None
        self._by: By | None = None
        self._ending: _Ending | None = None

    def run(self) -> None:
        os.setpgid(0, 0)
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        waker = Waker()  # first: a signal's handler alone wakes nobody
        for number in _OURS:
            signal.signal(number, signal.SIG_IGN)
        for number in _ENDING:
            if self._before[number] != signal.SIG_IGN:  # nohup
                signal.signal(number, self._on_signal)
        # Not to be met by `pkill -f gpulaunch`; it is what others are shown as the holder.
        rename(" ".join(self._held.argv) or "hold")
        listen_anew(self._held.descriptors)
        if self._held.argv:
            self._start()
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        while not self._over():
            watched = [waker.fd] if self._ending else [waker.fd, self._life]
            ready, _, _ = select.select(watched, [], [], self._patience())
            waker.clear()
            if self._life in ready:
                self._end("launcher")
            elif self._asked:
                self._end("signal")
            elif self._until is not None and boottime() >= self._until:
                self._end("time")
        over = {"by": self._by, "status": self._status, "error": self._error}
        with suppress(OSError):  # the launcher is gone
            os.write(self._news, json.dumps(over).encode())

    def _over(self) -> bool:
        """Reap what has ended; tell whether nothing is left to hold the leases for."""
        if self._ending is not None:
            self._ending.look()
        with suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                if found[0] == self._main:
                    code = os.waitstatus_to_exitcode(found[1])
                    self._status = code if code >= 0 else 128 - code
                    self._end("command")
            return False
        return self._ending is not None or bool(self._held.argv)

    def _end(self, by: By) -> None:
        if self._by is None:
            self._by = by
            self._ending = _Ending(self._held.grace)

    def _patience(self) -> float:
        if self._ending is not None:
            return self._ending.patience
        left = LOOK_AGAIN if self._until is None else self._until - boottime()
        return min(LOOK_AGAIN, max(0.0, left))

    def _on_signal(self, number: int, frame: object) -> None:
        self._asked = True

    def _start(self) -> None:
        """Start the command; where it cannot be executed, note the error."""
        me = os.getpid()
        told, tell = os.pipe2(os.O_CLOEXEC)
        self._main = os.fork()
        if self._main == 0:
            try:
                self._become(me)
            except OSError as error:
                os.write(tell, str(error.errno or 1).encode())
            finally:
                os._exit(127)
        os.close(tell)
        if failed := os.read(told, 16):
            self._error = int(failed)
        os.close(told)

    def _become(self, guard: int) -> None:
        with suppress(OSError):  # that group has ended meanwhile, and the launcher with it
            os.setpgid(0, self._group)
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guard:
            return
        signal.set_wakeup_fd(-1)
        for number, handler in self._before.items():
            ignored = handler == signal.SIG_IGN
            signal.signal(number, signal.SIG_IGN if ignored else signal.SIG_DFL)
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        os.execvpe(self._held.argv[0], list(self._held.argv), dict(self._held.environ))


def listen_anew(descriptors: Sequence[int]) -> None:
    """Be the process that the kernel names as the holder of these names (SO_PEERCRED)."""
    for fd in descriptors:
        if stat.S_ISSOCK(os.fstat(fd).st_mode):
            with socket.socket(fileno=os.dup(fd)) as sock:
                if sock.family == socket.AF_UNIX:
                    sock.listen(BACKLOG)


def descendants() -> list[int]:
    """Return all processes below this one, parents before their children."""
    found = children()
    for pid in found:
        found += children_of(pid)  # the list grows while it is gone through
    return found


def ignores(pid: int, number: int) -> bool:
    """Tell whether the process ignores that signal; False if it cannot be read."""
    with suppress(OSError, ValueError), open(f"/proc/{pid}/status", "rb") as file:
        for line in file:
            if line.startswith(b"SigIgn:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def on_signals(guarded: Guarded, heard: Callable[[int], None], interrupt: bool) -> None:
    """End what is guarded at TERM and HUP, each unless it is ignored; `heard` gets the signal.

    `interrupt`: at INT too. Otherwise INT and QUIT are the command's, which the terminal sends to
    it as well.
    """

    def end(number: int, frame: object) -> None:
        heard(number)
        guarded.end()

    for number in [*_ENDING, signal.SIGINT] if interrupt else [*_ENDING]:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, end)
    for number in () if interrupt else (signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
