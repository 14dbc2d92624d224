"""Waits in line: of a user's launchers that ask for the same cards, the first alone asks for them.

    gpulaunch/1/line/<cards><line>/<since>-<pid>     a place: a listening socket

    the first     asks for cards; becomes its command, which closes the place
    the second    has looked which cards there are, and is connected to the first
    all others    are the small program here, connected to the second one ahead of them

So forty that wait cost little, a freed card wakes two of them, and they go in the order in which
they came. Those in other lines may wait for the same card: <cards> has a bit for each that a line
waits for, in hex digits, and who came later leaves it to who came before (`OtherLines`).

A place is no right to anything: leases alone say who has a card. Who cannot tell whether
somebody is ahead goes on, and two that go on at once are as any two launchers.

Only places of this user's processes count, as whoever holds one keeps those behind it waiting, and
none of a stopped or frozen process: the kernel tells nobody of that, so that is looked at.

The program: `line PLACE:COMMAND:UNTIL [WORD ...]`. PLACE is a descriptor, COMMAND that of a file
with the command line that it becomes in the end, a NUL after each word; UNTIL in monotonic seconds,
empty for ever. The WORDs are for people who list processes.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import sys
import time

from .proc import is_suspended, own_environment

PREFIX = b"\0gpulaunch/1/line/"
BACKLOG = 4096
"""Connections that a place keeps, fewer where the kernel allows fewer.

Nobody accepts one, so that those of launchers that came and are gone are kept as well, two or three
of each. A place that is full of them counts for nobody any more.
"""
SMALL = 2
"""How many are ahead, at least, of one that is the small program."""
DIGITS = 16
"""Of a line's name, how many are its cards: two of them may have the same bit."""
LOOK = 10.0
"""Seconds between two looks whether the process ahead was stopped or frozen."""
OWN_FAILURE = 125  # errors.py has the same
_CREDENTIALS = "iII"


def take_place(line: str) -> socket.socket:
    """Take the last place of a line and return it. Raises OSError."""
    place = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        since = b"/%020d-%d" % (time.monotonic_ns(), os.getpid())
        place.bind(PREFIX + line.encode() + since)
        place.listen(BACKLOG)
    except OSError:
        place.close()
        raise
    return place


def ahead_by(place: socket.socket, many: int) -> tuple[socket.socket, int] | None:
    """Return a connection to the one so many places ahead, and its PID; None where nobody is.

    The PID is 0 for a process in another PID namespace.
    """
    for name in reversed(names_ahead(place)):
        there = _reached(name)
        if there is None:
            continue
        if not _suspended(there[1]):
            many -= 1
            if not many:
                return there
        there[0].close()
    return None


def _reached(name: bytes) -> tuple[socket.socket, int] | None:
    """Return a connection to a place of this user's, and the PID behind it; None for others'."""
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        link.connect(name)
        size = struct.calcsize(_CREDENTIALS)
        told = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    except OSError:  # it is gone, or not there yet
        link.close()
        return None
    pid, user, _ = struct.unpack(_CREDENTIALS, told)
    if user == os.geteuid():
        return link, pid
    link.close()
    return None


def _suspended(pid: int) -> bool:
    """Tell whether the process behind a place is stopped or frozen, as far as that is known."""
    return bool(pid) and is_suspended(pid)


def is_behind(place: socket.socket, many: int) -> bool:
    """Tell whether so many are ahead."""
    ahead = ahead_by(place, many)
    if ahead is not None:
        ahead[0].close()
    return ahead is not None


def names_ahead(place: socket.socket) -> list[bytes]:
    """Return the names of the places ahead, whoever has them, the first in line first."""
    own = place.getsockname()
    return sorted(name for name in _places(own[: own.rindex(b"/") + 1]) if name < own)


class OtherLines:
    """Who came earlier than this place's launcher, in other lines, and for which cards.

    Connects to each place once, as nobody accepts connections there.
    """

    def __init__(self, place: socket.socket) -> None:
        self._line, self._since = _parts(place.getsockname())
        self._links: dict[bytes, tuple[socket.socket, int] | None] = {}

    def wait_for(self, card: int) -> bool:
        """Tell whether somebody there waits for the card with this bit."""
        return any(self._counts(name) for name in _places(PREFIX) if self._is_earlier(name, card))

    def _is_earlier(self, name: bytes, card: int) -> bool:
        line, since = _parts(name)
        return line != self._line and since < self._since and bool(_cards(line) & card)

    def _counts(self, name: bytes) -> bool:
        if name not in self._links:
            self._links[name] = _reached(name)
        there = self._links[name]
        return there is not None and not _suspended(there[1])

    def close(self) -> None:
        for there in self._links.values():
            if there is not None:
                there[0].close()


def _parts(name: bytes) -> tuple[bytes, bytes]:
    """Return the line of a place, and since when who has it."""
    line, _, since = name[len(PREFIX) :].partition(b"/")
    return line, since


def _cards(line: bytes) -> int:
    try:
        return int(line[:DIGITS], 16)
    except ValueError:  # whoever may have made that name
        return 0


def _places(prefix: bytes) -> set[bytes]:
    """Return the names of all places that begin so, whoever has them."""
    sought = b" @" + prefix[1:]
    found: set[bytes] = set()
    for _ in range(2):  # gpus/names.py has why: one reading may leave a socket out
        try:
            with open("/proc/net/unix", "rb") as table:
                rests = [line.rstrip(b"\n").partition(sought) for line in table]
        except OSError:
            return set()
        found |= {prefix + rest for _, here, rest in rests if here}
    return found


def wait(place: socket.socket, until: float | None, many: int = 1) -> None:
    """Wait until less than so many are ahead, or until then (monotonic seconds)."""
    while (ahead := ahead_by(place, many)) is not None:
        link, pid = ahead
        with link:
            if not _goes(link, pid, until):
                return


def _goes(link: socket.socket, pid: int, until: float | None) -> bool:
    """Wait until the one ahead is gone or suspended; return False where the time is over first."""
    poll = select.poll()
    poll.register(link, 0)  # its end alone, whatever it may send
    while True:
        left = LOOK if until is None else min(LOOK, until - time.monotonic())
        if left <= 0:
            return False
        if poll.poll(left * 1000) or _suspended(pid):
            return True


def interrupts(on: bool) -> None:
    """Let interrupts through; or have them wait, until what this process becomes can take them.

    An interpreter that is just starting would show a traceback.
    """
    signal.pthread_sigmask(signal.SIG_UNBLOCK if on else signal.SIG_BLOCK, (signal.SIGINT,))


def main() -> None:
    """Wait until this place is nearly the first, and become the command that was given with it."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    interrupts(True)
    place_fd, command_fd, until = sys.argv[1].split(":")
    with socket.socket(fileno=int(place_fd)) as place:
        wait(place, float(until) if until else None, SMALL)
        argv = os.pread(int(command_fd), os.fstat(int(command_fd)).st_size, 0).split(b"\0")[:-1]
        os.close(int(command_fd))
        interrupts(False)
        try:
            os.execve(argv[0], argv, own_environment())
        except OSError as error:
            sys.stderr.write(f"gpulaunch exec: its turn has come, but not its program: {error}\n")
            sys.exit(OWN_FAILURE)
