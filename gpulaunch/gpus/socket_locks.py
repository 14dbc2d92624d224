"""Names in the kernel: abstract Unix sockets that exclude each other and say who took them.

Owns binding, connecting to, taking over and listing `\\0gpulaunch/1/...`. A bound name is held by
whoever has the listening socket open and is gone with the last of them: nothing here can be stale,
and no file exists that a cleaner could remove. What the sockets mean is decided elsewhere (leases,
runs).

Any user of the machine may bind any of these names. The kernel tells who did (SO_PEERCRED); what
such a process says of itself is checked before use.

Also owns the lock files of leases, their second layer, and the TCP ports reserved for jobs.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import socket
import stat
import time
from collections.abc import Iterable, Sequence
from itertools import islice

from msgspec import Struct

from gpulaunch.agent import ports
from gpulaunch.agent.proc import is_stopped
from gpulaunch.agent.wire import peer
from gpulaunch.base.errors import GpulaunchError, UsageError
from gpulaunch.base.files import user_name
from gpulaunch.base.localtime import time_of

PREFIX = "gpulaunch/1/"
BACKLOG = 4096
RUN_ID = re.compile(r"[\w.-]{1,64}", re.ASCII)
_INTERPRETER = re.compile(r"(?:python|pypy)[\d.]*|perl|Rscript|ruby|node|julia|bash|dash|sh|zsh")
_LISTENING = 0x10000  # __SO_ACCEPTCON in /proc/net/unix
# A stream socket that is not connected. A name may hold line breaks, and so forge whole lines of
# the table: lines of another form are skipped. (net/unix/af_unix.c, unix_seq_show)
_BOUND = re.compile(
    rb"[0-9a-f]+: [0-9A-F]{8} [0-9A-F]{8} ([0-9A-F]{8}) 0001 01 +([0-9]+) @%s(.*)\n"
    % re.escape(PREFIX.encode())
)
_ANSWER_TIMEOUT_MS = 200
_RUNS_ASKED = 256
_HOLD = re.compile(r"hold/[^/]*/(?P<until>[0-9]{0,10})/(?P<name>.*)", re.DOTALL)
MAX_HOLD = 60
"""Bytes of a hold's name: the kernel allows 107 for all of it."""


class NamedHold(Struct, frozen=True):
    """What `gpulaunch hold` says of itself: its name, empty for none, and its end (UTC), if any."""

    name: str = ""
    until: float | None = None

    def __str__(self) -> str:
        named = f" for '{self.name}'" if self.name else ""
        if self.until is None:
            return named
        now = time.time()
        near = self.until - now < 600
        return f"{named} until {time_of(self.until if near else self.until // 60 * 60, now)}"


def how_to_continue(word: str, pid: int) -> str:
    """Return what a person does with a launcher that is "stopped" or "frozen"."""
    if word == "frozen":
        return "it continues once its control group is thawed"
    return f"fg in its terminal or kill -CONT {pid} continues it"


class Holder(Struct, frozen=True):
    """Who took a name, from SO_PEERCRED: `pid` is 0 where it lives in another PID namespace.

    `stopped`: the process is stopped (Ctrl-Z, SIGSTOP), and gives nothing back until it continues.
    """

    pid: int
    uid: int
    user: str
    command: str | None = None
    run: str | None = None
    stopped: bool = False
    hold: NamedHold | None = None

    def __str__(self) -> str:
        if not self.pid:
            return f"{self.user}, in another container"
        command = f": {self.command}" if self.command else ""
        run = f", run {self.run}" if self.run else ""
        stopped = f", stopped: {how_to_continue('stopped', self.pid)}" if self.stopped else ""
        hold = "" if self.hold is None else str(self.hold)
        return f"{self.user}{hold} (pid {self.pid}{run}{stopped}){command}"


UNKNOWN = Holder(0, -1, "somebody")


class NameHeldError(GpulaunchError):
    """Another process holds the name; `holder` says who, as far as the kernel tells."""

    def __init__(self, what: str, holder: Holder) -> None:
        super().__init__(f"{what} is held by {holder}")
        self.what = what
        self.holder = holder


def short(name: str) -> str:
    """Return the name, or a hash of a long one: the kernel allows 107 bytes for a whole name."""
    return name if len(name) <= 32 else hashlib.sha256(os.fsencode(name)).hexdigest()[:32]


def bind_name(name: str) -> socket.socket:
    """Take `gpulaunch/1/<name>`; return its listening, non-blocking, close-on-exec socket.

    Raises NameHeldError when a living process has it.
    """
    for _ in range(_ANSWER_TIMEOUT_MS):
        if sock := try_bind(name):
            return sock
        if holder := holder_of(name):
            raise NameHeldError(name, holder)
        # Bound but refusing connections: its holder is between bind and listen, or has just closed
        # it. Both last microseconds, once that process gets its turn.
        os.sched_yield()
    raise NameHeldError(name, UNKNOWN)


def try_bind(name: str) -> socket.socket | None:
    """Take the name as `bind_name` does; None if it is taken, without a look at who has it."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        sock.bind(_address(name))
        sock.listen(BACKLOG)
    except BaseException as error:
        sock.close()
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            return None
        raise
    return sock


def connect_name(name: str) -> socket.socket | None:
    """Return a non-blocking connection to the name's holder; None when there is none.

    Raises BlockingIOError when as many connections as the kernel allows wait there unaccepted.
    """
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        link.connect(_address(name))
    except ConnectionRefusedError:
        link.close()
        return None
    except BaseException:
        link.close()
        raise
    return link


def holder_of(name: str) -> Holder | None:
    """Return the process that called listen on the name last; None when nobody listens on it."""
    try:
        link = connect_name(name)
    except OSError:
        return UNKNOWN
    if link is None:
        return None
    with link:
        pid, uid = peer(link)
    of_a_card = not name.startswith("run/")
    run = run_of(pid) if of_a_card else None
    hold = hold_of(pid) if of_a_card and run is None else None
    return Holder(pid, uid, user_name(uid), command_of(pid), run, is_stopped(pid), hold)


def listening(prefix: str = "") -> tuple[str, ...]:
    """Return the names below `gpulaunch/1/<prefix>` with a listener, without `gpulaunch/1/`.

    One that listens all the while is among them. The kernel gives its table in pieces, and leaves
    a socket out where another of the same hash value ends between two of them (unix_from_bucket in
    net/unix/af_unix.c): hence two readings.
    """
    read = (*_bound(), *_bound())
    names = (name for name, listens, _ in read if listens and name.startswith(prefix))
    return tuple(dict.fromkeys(names))


def connect_patiently(name: str) -> tuple[socket.socket | None, bool]:
    """Return a connection and whether the name is taken: (None, True) if nobody listens on it.

    Raises BlockingIOError as connect_name does.
    """
    for _ in range(_ANSWER_TIMEOUT_MS):
        if link := connect_name(name):
            return link, True
        if not is_bound(name):
            return None, False
        os.sched_yield()  # as in bind_name
    return None, True


def is_bound(name: str) -> bool:
    """Tell whether the name is taken, be it by a socket that does not listen yet."""
    return any(bound == name for bound, *_ in _bound())


def inode_of(name: str) -> int:
    """Return the inode of the socket that holds the name; 0 if none does."""
    return next((inode for bound, _, inode in _bound() if bound == name), 0)


def have_open(name: str, pids: Iterable[int]) -> set[int]:
    """Return which of the processes have the name's socket open, of those that we may look at."""
    inode = inode_of(name)
    wanted = f"socket:[{inode}]"
    having = set()
    for pid in pids if inode else ():
        with contextlib.suppress(OSError):
            for fd in os.listdir(f"/proc/{pid}/fd"):
                if os.readlink(f"/proc/{pid}/fd/{fd}") == wanted:
                    having.add(pid)
                    break
    return having


def announce_hold(hold: NamedHold) -> socket.socket:
    """Take a name in the kernel that tells what this process holds cards for, and until when.

    Raises ValueError for a name that is too long, or not to be printed.
    """
    if not printable(hold.name):
        raise ValueError(f"expected a name of at most {MAX_HOLD} bytes, found {hold.name!r}")
    until = "" if hold.until is None else int(hold.until)
    return bind_name(f"hold/{os.getpid()}-{os.urandom(2).hex()}/{until}/{hold.name}")


def printable(name: str) -> bool:
    """Tell whether a hold may have this name: short enough, and nothing that moves a cursor."""
    return len(os.fsencode(name)) <= MAX_HOLD and (name.isprintable())


def hold_of(pid: int) -> NamedHold | None:
    """Return what a process says that it holds cards for; asks _RUNS_ASKED of them at most."""
    for name in islice(listening("hold/") if pid else (), _RUNS_ASKED):
        said = _HOLD.fullmatch(name)
        with contextlib.suppress(OSError):
            link = None if said is None else connect_name(name)
            if said is None or link is None:
                continue
            with link:
                if peer(link)[0] == pid:
                    text = "".join(c if c.isprintable() else "?" for c in said["name"])
                    until = said["until"]
                    return NamedHold(text[:MAX_HOLD], float(until) if until else None)
    return None


def run_of(pid: int) -> str | None:
    """Return the id of the run whose supervisor this process is; asks _RUNS_ASKED runs at most."""
    names = listening("run/") if pid else ()
    runs = (name for name in names if RUN_ID.fullmatch(name.removeprefix("run/")))
    for name in islice(runs, _RUNS_ASKED):
        with contextlib.suppress(OSError):
            link = connect_name(name)
            if link is None:
                continue
            with link:
                if peer(link)[0] == pid:
                    return name.removeprefix("run/")
    return None


def listening_socket(fd: int, name: str) -> socket.socket:
    """Return the passed socket, if it is the one that holds the name. Raises OSError.

    A socket of the same name may be of another kind or network namespace, and exclude nobody here:
    it holds the name only if a connection to the name reaches this process.
    """
    try:
        sock = socket.socket(fileno=fd)
    except OSError:
        os.close(fd)
        raise
    try:
        same = sock.getsockname() == b"\0" + os.fsencode(PREFIX + name)
        if not same or sock.type != socket.SOCK_STREAM:
            raise OSError("another socket than the lease's")
        sock.setblocking(False)
        sock.listen(BACKLOG)  # again, so that SO_PEERCRED names us from now on
        if _peer(name) != (os.getpid(), os.geteuid()):
            raise OSError("another socket holds the lease's name")
    except OSError:
        sock.close()
        raise
    return sock


def _peer(name: str) -> tuple[int, int] | None:
    """Return the PID and user id of the holder of the name in this network namespace; or None."""
    link = connect_name(name)
    if link is None:
        return None
    with link:
        return peer(link)


def command_of(pid: int, width: int = 200) -> str | None:
    """Return a process's command line for people, from its script on and without directories.

    Fit to be printed. None if it cannot be read.
    """
    if not pid:
        return None
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            raw = file.read(4 * width)
    except OSError:
        return None
    text = " ".join(known_as(raw.rstrip(b"\0").decode(errors="replace").split("\0")))
    # Anybody may name a process with escape sequences in it.
    return "".join(c if c.isprintable() else "?" for c in text)[:width] or None


def known_as(argv: list[str]) -> list[str]:
    """Shorten a command: `/opt/env/bin/python -u /home/ann/train.py --lr 3` to train.py --lr 3."""
    program = argv[0].rpartition("/")[2] or argv[0]
    rest = argv[1:]
    if not _INTERPRETER.fullmatch(program):
        return [program, *rest]
    while rest and rest[0].startswith("-") and rest[0] not in ("-m", "-c", "-"):
        rest = rest[2 if rest[0] in ("-W", "-X") else 1 :]
    if not rest or rest[0] in ("-c", "-"):
        return [program, *argv[1:]]
    if rest[0] == "-m":
        return rest[1:] or [program, *argv[1:]]
    return [rest[0].rpartition("/")[2] or rest[0], *rest[1:]]


def _address(name: str) -> bytes:
    return b"\0" + os.fsencode(PREFIX + name)


def _bound() -> list[tuple[str, bool, int]]:
    """Return name, whether it listens, and inode of our stream sockets in this network namespace.

    Accepted connections have their listener's name, but do not hold it: they are left out.
    """
    with open("/proc/net/unix", "rb") as file:
        found = [_BOUND.fullmatch(line) for line in file]
    return [(os.fsdecode(m[3]), bool(int(m[1], 16) & _LISTENING), int(m[2])) for m in found if m]


# ── Lock files ────────────────────────────────────────────────────────────────────────────────────

VARIABLE = "GPULAUNCH_LEASE_DIR"
# Never waits: a FIFO for its writer, a file for the end of another's fcntl(F_SETLEASE).
_LOOK = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_MAKE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_TRIES = 100


class UnfitLockError(OSError):
    """A lock that cannot be taken though nobody holds it; the text says why and what to do.

    An OSError, since whoever takes a lease is ready for one: it is that card's trouble alone.
    """

    def __init__(self, path: str, found: str) -> None:
        super().__init__(f"{path} {found}: remove it, or ask its owner to")


def check(directory: str | None, source: str = VARIABLE) -> None:
    """Raise UsageError if the directory, which `source` names, cannot be used for locks."""
    if directory and not (os.path.isdir(directory) and os.access(directory, os.W_OK | os.X_OK)):
        raise UsageError(
            f"{source}={directory}: expected a directory that everybody who uses the cards may "
            "write to (mode 1777)"
        )


def lock(directory: str, key: str) -> int | None:
    """Lock the key's file; return its read-only descriptor, None if another process holds it.

    This is the second layer of a lease, for containers with a network namespace of their own. The
    files `<GPULAUNCH_LEASE_DIR>/<key>.lock` are never removed, and their presence means nothing:
    the lock, held through open descriptors, is the lease. Everybody may write to the directory, so
    anything may stand in a file's place: nothing is opened there in a way that waits.
    Raises UnfitLockError where the lock's path holds something else, or cannot be reached.
    """
    path = _path(directory, key)
    try:
        for _ in range(_MAX_TRIES):
            fd = _open(path)
            try:
                if not _take(fd, path):
                    os.close(fd)
                    return None
                if _same_file(fd, path):
                    return fd
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)  # somebody removed the file meanwhile: this lock excludes nobody
    except UnfitLockError:
        raise
    except OSError as error:
        raise UnfitLockError(path, f"cannot be locked ({error.strerror})") from error
    raise UnfitLockError(path, "is removed all the time")


def holds(fd: int, directory: str, key: str) -> bool:
    """Tell whether a descriptor that was passed to this process holds the key's lock."""
    path = _path(directory, key)
    try:
        return _same_file(fd, path) and _take(fd, path)
    except OSError:
        return False


def _path(directory: str, key: str) -> str:
    return os.path.join(directory, key.replace("/", "_") + ".lock")


def _take(fd: int, path: str) -> bool:
    """Lock an open file; return False if it is locked through another descriptor."""
    kind = os.fstat(fd).st_mode
    if not stat.S_ISREG(kind):
        raise UnfitLockError(path, f"is {_KINDS.get(stat.S_IFMT(kind), 'no file')}")
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


_KINDS = {stat.S_IFIFO: "a FIFO", stat.S_IFDIR: "a directory", stat.S_IFSOCK: "a socket"}
_UNOPENED = {errno.ELOOP: "is a symbolic link", errno.ENXIO: "is a socket or a device"}


def _open(path: str) -> int:
    """Open the file, or create it; fs.protected_regular refuses O_CREAT on another user's file."""
    for _ in range(_MAX_TRIES):
        try:
            return os.open(path, _LOOK)
        except FileNotFoundError:
            _create(path)
        except OSError as error:
            if error.errno in _UNOPENED:
                raise UnfitLockError(path, _UNOPENED[error.errno]) from error
            raise
    raise UnfitLockError(path, "is removed all the time")


def _create(path: str) -> None:
    try:
        fd = os.open(path, _MAKE)
    except OSError as error:
        if error.errno != errno.EEXIST:
            raise
        return
    try:
        os.fchmod(fd, 0o644)  # whatever the umask: other users lock it through a read-only open
    finally:
        os.close(fd)


def _same_file(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False


# ── Ports of jobs ─────────────────────────────────────────────────────────────────────────────────


def reserve_port(among: Sequence[int] = ()) -> ports.PortLease:
    """Reserve a port that no launcher has and nobody listens on. Raises GpulaunchError."""
    try:
        return ports.reserve_port(among)
    except OSError as problem:
        raise GpulaunchError(str(problem)) from None


class PortPool:
    """Ports of this launcher's jobs. One that a job gave back is kept for a later job."""

    def __init__(self) -> None:
        self._kept: list[ports.PortLease] = []

    def take(self) -> ports.PortLease:
        """Return a port that is to be given back. Raises GpulaunchError."""
        return self._kept.pop() if self._kept else reserve_port()

    def give_back(self, leases: Iterable[ports.PortLease]) -> None:
        """Keep the ports, but not one that something of its job's connections still occupies."""
        for lease in leases:
            if ports.is_unused(lease.port):
                self._kept.append(lease)
            else:
                lease.close()

    def close(self) -> None:
        """Give the kept ports to other launchers."""
        for lease in self._kept:
            lease.close()
        self._kept.clear()
