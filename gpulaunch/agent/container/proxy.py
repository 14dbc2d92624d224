"""What the container's first process is told, and the end of the job's program."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket

from ..ending import die_by, end_as
from ..proc import stat_fields
from ..wire import Any, coded_all, counted, packed, peer, send_fields
from .engine import EngineClient
from .log import LOG, say
from .socket import Door
from .starting import Start

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

NO_PROGRAM = 127  # as ../native/keeper.h has it
LEASES_FROM = 100  # the least number that keepers give a lease, where the limit allows it


class Carrier:
    """One job in its container."""

    def __init__(self, door: Door, engine: EngineClient, argv: list[str]) -> None:
        self.door = door
        self.engine = engine
        self.record = engine.record
        self.argv = argv

    def run(self) -> NoReturn:
        """Run the job, and end as it does."""
        start = Start(self.door, self.engine)
        link = start.connection()
        pid, began, above = identity(link)
        self.record.tell_of(pid, began)
        self.hand_over(link)
        for number in start.early:
            tell(link, number)
        end = self.end_of(link)
        self.tell_of(end)
        self.engine.clear_away(above)
        if end is None:
            die_by(signal.SIGKILL)
        end_as(end["status"])

    def hand_over(self, link: socket.socket) -> None:
        """Tell inside what to run, with the job's files; only leases and the log stay open here."""
        held = self.engine.held
        allowed = os.sysconf("SC_OPEN_MAX")  # the soft limit; -1: there is none
        leases_from = min(LEASES_FROM, allowed // 2) if allowed >= 0 else LEASES_FROM
        message = packed(
            "run",
            *counted(coded_all(self.argv)),
            *coded_all([self.record.cwd]),
            *counted([variable.decode("latin-1") for variable in self.engine.variables()]),
            *counted(coded_all(self.record.unset)),
            *counted(coded_all(self.record.first)),
            *counted([str(cpu) for cpu in self.record.cpus]),
            str(self.record.warn),
            str(leases_from),
            *counted([str(fd) for fd in held]),
        )
        with contextlib.suppress(ConnectionError):  # it is gone already: that shows next
            send_fields(link, message, held)
        for fd in [fd for fd in held if fd < leases_from and fd != LOG]:
            os.close(fd)
            held.remove(fd)
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for fd in (0, 1):
            if fd != null:
                os.dup2(null, fd, inheritable=False)

    def end_of(self, link: socket.socket) -> dict[str, Any] | None:
        """Pass signals on until the program has ended; None where nobody says how."""
        signals = self.engine.signals
        while True:
            ready = signals.wait(None, link.fileno())
            for number in signals.take():
                tell(link, number)
                if number == signal.SIGTSTP:
                    os.kill(os.getpid(), signal.SIGSTOP)
            if link.fileno() not in ready:
                continue
            said = heard(link)
            if said is None or said["is"] == "ended":
                return said
            if said["is"] == "unkillable":
                pids = ", ".join(map(str, said["pids"]))
                say(f"process {pids} in the container cannot be killed; it is waited for")

    def tell_of(self, end: dict[str, Any] | None) -> None:
        """Write into the log what the status does not say."""
        if end is None:
            say(f"the container {self.record.name} was ended from outside")
            return
        if end["refused"]:
            say(self.words_of_refusal(end["status"], end["refused"]))
        if end["leftovers"]:
            say(f"{processes(end['leftovers'])} left over in the container ended with it")
        if end["oom_kills"]:
            killed = processes(end["oom_kills"])
            say(f"the kernel killed {killed} of the container for memory (its cgroup's oom_kill)")

    def words_of_refusal(self, status: int, why: str) -> str:
        if os.WEXITSTATUS(status) != NO_PROGRAM:
            return f"{why} (in the image {self.record.image})"
        program = self.argv[0]
        hint = "; `shell: [sh, -ec]` uses another shell" if program == "bash" else ""
        return f"{program} is not in the image {self.record.image}{hint}"


def processes(count: int) -> str:
    return f"{count} process" if count == 1 else f"{count} processes"


def tell(link: socket.socket, number: int) -> None:
    with contextlib.suppress(OSError):  # its end comes next
        send_fields(link, packed("signal", str(number)), flags=socket.MSG_DONTWAIT)


def heard(link: socket.socket) -> dict[str, Any] | None:
    """Return what inside says; None when it is gone."""
    try:
        data = link.recv(65536)
    except ConnectionError:  # it is gone and left words of ours unread; its own last ones are here
        data = link.recv(65536)
    said: dict[str, Any] | None = json.loads(data) if data else None
    return said


def identity(link: socket.socket) -> tuple[int, int, int]:
    """Return the PID of who is at the other end, its start in clock ticks since boot, its parent.

    All are 0 where this process's /proc does not show it.
    """
    pid, _ = peer(link)
    with contextlib.suppress(OSError, IndexError):
        fields = stat_fields(pid)
        return pid, int(fields[19]), int(fields[1])
    return 0, 0, 0
