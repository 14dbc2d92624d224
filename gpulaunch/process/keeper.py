"""The processes between the supervisor and a job: spawner, guardian, monitor.

    supervisor ──exec once──▶ spawner ──fork──▶ guardian ──fork──▶ monitor ──fork, exec──▶ job

What it owns: starting a job, its signals, timeouts and end, and the proof that no process of it is
left; also a worker, between the items that it takes (`serve.py` is the worker's own side). What it
never does: decide what runs, touch a card, write an environment's value anywhere.
It runs alone, as `python -I -S keeper.py FD`, on Python 3.8 and newer, standard library only;
hence one file, and no import from the package. With `try-isolation` in the descriptor's place it
prints on standard error why strict isolation is not possible here, if so, and exits.
`preload/server.py` loads it into the jobs' own interpreter, where some jobs need no exec.

Who adopts whom. All three are subreapers, so an orphan goes to the nearest one that lives:

    dies                 then
    supervisor             the monitor sees the end of file: TERM, grace, KILL, sweep, end written
    monitor                the guardian adopts the job's processes, kills them, exits
    guardian               the spawner adopts the monitor, which finishes its job and leaves
    monitor and guardian   the spawner kills what it adopts; until then it holds socket and leases
    spawner                pairs go on; the supervisor starts another spawner

When the supervisor is stopped (Ctrl-Z, SIGSTOP), a pair without a job leaves, so that others have
its cards; pairs with a job go on.

INVARIANT: the supervisor sees the end of file of a pair's socket only when no process of its job is
left. Spawner, guardian and monitor each hold the socket, and each closes it only after its own
sweep.

A sweep kills direct children alone, again and again until waitpid says ECHILD: their process ids
cannot be recycled, since nobody else reaps them, and the kernel gives us a dead child's children
before we can reap it, so ECHILD proves that no descendant is left.
"""

from __future__ import annotations

import binascii
import contextlib
import ctypes
import errno
import fcntl
import gc
import json
import math
import os
import select
import signal
import socket
import stat
import struct
import sys
import time

TYPE_CHECKING = False  # `typing` itself would be a tenth of what every fork copies
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

END_SIZE = 8192
NO_SPACE = "no_space"  # the kind of an error, as in ends.py
LEASES_FROM = 100
UNKILLABLE_AFTER = 8.0
OUTPUT_CHECK_LIMIT = 60.0
TERM_COMES = 0.05  # seconds within which a TERM that is sent to many processes reaches them all
SPARE_AFTER = 0.015  # seconds of idleness before a child is forked ahead: a launch comes first
LOOK = 2.0  # seconds between an idle pair's looks at whether the supervisor is stopped
LOOKS = 2  # looks in a row that find the supervisor stopped before the pair returns its leases
SUPERVISOR_GONE = "the supervisor is gone"

PR_SET_PDEATHSIG, PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 1, 15, 36
# The clock that file systems stamp files with: a file written now is never older than it.
CLOCK_REALTIME_COARSE = 5
CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
MS_RDONLY, MS_NOSUID, MS_REMOUNT, MS_BIND, MS_REC, MS_SLAVE = (
    1,
    2,
    1 << 5,
    1 << 12,
    1 << 14,
    1 << 19,
)
# Keepers block all signals but these. They block rather than ignore them, so that one call gives a
# job its defaults, and a TERM that comes between fork and exec stays pending instead of being lost.
HEARD_SIGNALS = {
    signal.SIGCHLD, signal.SIGCONT,
    signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP,
}  # fmt: skip
SCARCE = {errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE}

libc = ctypes.CDLL(None, use_errno=True)


class ContinueInChild(BaseException):
    """Unwinds the keepers' frames in a forked child that goes on as the job, without an exec."""


# For preload/server.py, whose interpreter is the jobs' own: the descriptors that imports opened and
# jobs keep; and the function that turns a forked child into its job (it raises ContinueInChild, or
# returns if the child is to exec).
opened: set[int] = set()
go_on_as_job: Callable[[dict[str, object], Monitor, dict[bytes, bytes]], None] | None = None
# Calls the hooks that imports registered for forked children, in the child that becomes a job. They
# may take `at_fork_limit` seconds. Then READY comes through the child's pipe; else the job starts
# cold.
at_fork: Callable[[], None] | None = None
at_fork_limit = 0.0
AT_FORK = "what is called at forks (os.register_at_fork, pthread_atfork)"
READY = b"\0"
# A refusal for want of room on the disk begins with it: no failure of the job's.
FULL = b"\1"
# Forks a keeper. In a preload server it calls no hooks, since none of them may hold up a keeper.
# There a job has a forker: a child that forks the job by os.fork, which calls all hooks, writes the
# job's process id as a line before READY, and exits.
fork: Callable[[], int] = os.fork


# ── The kernel ──────────────────────────────────────────────────────────────────────────────────


def prctl(option: int, value: int) -> None:
    if libc.prctl(option, ctypes.c_ulong(value), ctypes.c_ulong(0), ctypes.c_ulong(0), 0):
        raise OSError(ctypes.get_errno(), "prctl")


def rename(title: str) -> None:
    """Change this process's name and command line in `ps`.

    The original command line holds the package's path, and `pkill -f gpulaunch` must not kill
    supervisor and keepers together.
    """
    name = title.encode()
    libc.prctl(PR_SET_NAME, ctypes.c_char_p(name[:15]), 0, 0, 0)
    start, end = (int(number) for number in stat_fields("self")[45:47])
    if 0 < start < end:
        ctypes.memset(start, 0, end - start)
        ctypes.memmove(start, name, min(len(name), end - start - 1))


def stat_fields(pid: int | str) -> list[bytes]:
    """Return the fields of /proc/PID/stat from the state on, the third, after the last `)`."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()


def started_at(pid: int) -> int:
    """Return the process's start in clock ticks since boot, which with its id identifies it; or -1.

    -1: there is no such process.
    """
    try:
        return int(stat_fields(pid)[19])
    except OSError:
        return -1


def children() -> list[int]:
    me = os.getpid()
    try:
        with open(f"/proc/self/task/{me}/children", "rb") as file:
            return [int(number) for number in file.read().split()]
    except FileNotFoundError:  # a kernel without CONFIG_PROC_CHILDREN
        return [int(name) for name in os.listdir("/proc") if name.isdigit() and _parent(name) == me]


def _parent(name: str) -> int:
    try:
        return int(stat_fields(name)[1])
    except OSError:
        return -1


def has_ended(pid: int | None) -> bool:
    """Whether a direct child has ended, reaped or not."""
    assert pid is not None
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def send_signal(pid: int, number: int) -> bool:
    """Signal a direct child, or (negative) the group of one that is not reaped yet.

    Returns False if no process got it: there is no such group yet, or it belongs to another user
    by now (setuid).
    """
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def is_stopped(pid: int) -> bool:
    """Whether a process is suspended, by job control or a debugger (proc(5))."""
    try:
        return stat_fields(pid)[0] in (b"T", b"t")
    except (OSError, IndexError):
        return False


def close_all_but(kept: set[int]) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            with contextlib.suppress(OSError):  # the descriptor of the listing itself
                os.close(int(name))


class Waker:
    """A descriptor that becomes readable when a child ends, for `poll`."""

    def __init__(self) -> None:
        self.fd, write = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(write, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)

    def clear(self) -> None:
        try:
            while len(os.read(self.fd, 4096)) == 4096:
                pass
        except BlockingIOError:
            pass


class KeeperChannel:
    """The keepers' end of a SEQPACKET pair: one JSON value a message."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, fileno=fd)

    def receive(self) -> tuple[dict[str, object] | None, list[int]]:
        """Return the next message and its descriptors; None when the supervisor is gone.

        A peer that died with unread messages of ours shows as ECONNRESET, not as an end of file.
        """
        try:
            data, fds = receive_fds(self.socket)
        except ConnectionError:
            return None, []
        return (json.loads(data) if data else None), fds

    def send(self, message: dict[str, object], fds: Sequence[int] = ()) -> None:
        rights = struct.pack(f"{len(fds)}i", *fds)
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if fds else []
        with contextlib.suppress(OSError):  # the supervisor is gone; the end is in its file
            data = json.dumps(message).encode()
            self.socket.sendmsg([data], ancillary, socket.MSG_DONTWAIT)

    def supervisor(self) -> int:
        """Return the process id of the supervisor, which made this pair of sockets."""
        size = struct.calcsize("iII")
        credentials = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        pid: int = struct.unpack("iII", credentials)[0]
        return pid


def receive_fds(link: socket.socket) -> tuple[bytes, list[int]]:
    """Return one message and the descriptors that came with it."""
    flags = socket.MSG_CMSG_CLOEXEC
    data, ancillary, _, _ = link.recvmsg(65536, socket.CMSG_SPACE(4 * 253), flags)
    fds: list[int] = []
    for _, kind, payload in ancillary:
        if kind == socket.SCM_RIGHTS:
            fds.extend(memoryview(payload[: len(payload) // 4 * 4]).cast("i"))
    return data, fds


# ── The spawner ─────────────────────────────────────────────────────────────────────────────────


class PairHandle:
    """A pair as the spawner knows it, with the descriptors held until no process of it is left."""

    def __init__(self, monitor: int, fds: list[int]) -> None:
        self.monitor = monitor
        self.monitor_start = started_at(monitor) if monitor else -1
        self.fds = fds

    def close(self) -> None:
        """Close the descriptors, the socket last: leases are free when the supervisor sees that."""
        for fd in reversed(self.fds):
            os.close(fd)


class AwaitedPair:
    """A pair to be forked once its leases have come through a link."""

    def __init__(self, fds: list[int], alive: bool, gives_back: bool) -> None:
        self.link = socket.socket(fileno=fds.pop())
        self.fds = fds
        self.alive = alive
        self.gives_back = gives_back

    def take(self) -> bool:
        """Receive the leases; return True if all of them have come."""
        try:
            said, fds = receive_fds(self.link)
        except OSError:
            said, fds = b"", []
        self.link.close()
        self.fds += fds
        return bool(said) and len(fds) == said[0]

    def decline(self) -> None:
        """Tell the supervisor that no pair is forked, and close its descriptors."""
        channel = KeeperChannel(self.fds[0])
        channel.send({"is": "left"})
        channel.socket.close()
        for fd in self.fds[1:]:
            os.close(fd)


class SpawnServer:
    def __init__(self, control: int) -> None:
        self.control: KeeperChannel | None = KeeperChannel(control)
        self.environment = own_environment()
        self.waker = Waker()
        self.pairs: dict[int, PairHandle] = {}
        self.broken: list[PairHandle] = []
        self.awaited: dict[int, AwaitedPair] = {}
        self.nap: float | None = None

    def serve(self) -> None:
        """Fork pairs and reap them until the supervisor and every pair are gone."""
        while self.control or self.pairs or self.broken or self.awaited:
            poller = select.poll()
            poller.register(self.waker.fd, select.POLLIN)
            for fd in self.awaited:
                poller.register(fd, select.POLLIN)
            if self.control:
                poller.register(self.control.fd, select.POLLIN)
            ready = dict(poller.poll(None if self.nap is None else self.nap * 1000))
            self.waker.clear()
            self.reap()
            for fd in self.awaited.keys() & ready.keys():
                self.fork_awaited(self.awaited.pop(fd))
            if self.control and self.control.fd in ready:
                self.answer(self.control)

    def answer(self, control: KeeperChannel) -> None:
        message, fds = control.receive()
        if message is None:
            os.close(control.socket.detach())
            self.control = None
            return
        try:
            if len(fds) != message["fds"]:  # the kernel dropped some: too many open files here
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            alive, gives_back = bool(message["alive"]), bool(message.get("gives_back"))
            if message.get("link"):
                awaited = AwaitedPair(fds, alive, gives_back)
                self.awaited[awaited.link.fileno()] = awaited
            else:
                self.fork_pair(fds, alive, gives_back)
        except OSError:
            # Out of descriptors or processes. The supervisor sees the pair's end of file and asks
            # again.
            sys.excepthook(*sys.exc_info())
            for fd in fds:
                os.close(fd)

    def fork_awaited(self, awaited: AwaitedPair) -> None:
        """Fork a pair whose leases have come; else tell the supervisor that they have not."""
        try:
            if awaited.take():
                self.fork_pair(awaited.fds, awaited.alive, awaited.gives_back)
                return
        except OSError:
            sys.excepthook(*sys.exc_info())
        awaited.decline()

    def fork_pair(self, fds: list[int], alive: bool, gives_back: bool) -> None:
        """Fork a pair. Raises OSError if it cannot be forked."""
        forked, write = os.pipe()
        try:
            pid = fork_patiently()
        except OSError:
            os.close(forked)
            os.close(write)
            raise
        if pid == 0:
            continues = False
            try:
                guardian(fds, alive, gives_back, write, self.environment)
            except ContinueInChild:
                continues = True
                raise
            except BaseException:
                sys.excepthook(*sys.exc_info())
            finally:
                if not continues:
                    os._exit(70)
        os.close(write)
        monitor = int(os.read(forked, 32) or 0)
        os.close(forked)
        self.pairs[pid] = PairHandle(monitor, fds)

    def reap(self) -> None:
        """Reap dead children, continue stopped ones, kill adopted ones that are no keepers."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            except ChildProcessError:
                break
            if pid == 0:
                break
            if os.WIFSTOPPED(status):
                send_signal(pid, signal.SIGCONT)
            elif pid in self.pairs:
                pair = self.pairs.pop(pid)
                if status == 0:  # the guardian proved that nothing is left
                    pair.close()
                else:
                    self.broken.append(pair)
        if self.broken:
            self.sweep()

    def sweep(self) -> None:
        mine = [pid for pid in children() if pid not in self.pairs]
        monitors = {
            pair.monitor
            for pair in self.broken
            if pair.monitor in mine and started_at(pair.monitor) == pair.monitor_start
        }
        for pid in monitors:
            # It may be stopped, and its guardian, which would have continued it, is dead.
            send_signal(pid, signal.SIGCONT)
        strangers = [pid for pid in mine if pid not in monitors]
        for pid in strangers:
            send_signal(pid, signal.SIGKILL)
        if strangers:
            self.nap = min((self.nap or 0.0005) * 2, 1.0)
            return
        for pair in self.broken:
            if pair.monitor not in monitors:
                pair.close()
        self.broken = [pair for pair in self.broken if pair.monitor in monitors]
        self.nap = None


def fork_patiently(by: Callable[[], int] | None = None) -> int:
    """Fork, retrying for two seconds while processes are scarce. Raises OSError after that."""
    by, pause = by or fork, 0.01
    while True:
        try:
            return by()
        except OSError as problem:
            if problem.errno not in SCARCE or pause > 1.0:
                raise
        time.sleep(pause)
        pause *= 2


def own_environment() -> dict[bytes, bytes]:
    """Return the environment as the supervisor gave it, without an interpreter's own LC_CTYPE.

    An interpreter in the C locale adds that variable to its `os.environ`.
    """
    try:
        with open("/proc/self/environ", "rb") as file:
            entries = file.read().split(b"\0")
    except OSError:
        return dict(os.environb)
    return dict(entry.split(b"=", 1) for entry in entries if entry.find(b"=") > 0)


# ── The guardian ────────────────────────────────────────────────────────────────────────────────


def guardian(
    fds: list[int], alive: bool, gives_back: bool, forked: int, environment: dict[bytes, bytes]
) -> None:
    """Run the guardian: fork the monitor, hold its descriptors, wait for its end. Never returns."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    close_all_but({0, 1, 2, forked, *fds} | opened)
    os.setsid()
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    channel = KeeperChannel(fds[0])
    leases = [lift(fd) for fd in fds[2 if alive else 1 :]]
    watch, watched = os.pipe()  # the monitor reads: end of file when the guardian is gone
    monitor = fork_patiently()
    if monitor == 0:
        os.close(watched)
        os.close(forked)
        continues = False
        try:
            Monitor(channel, watch, leases, environment, gives_back).serve()
        except ContinueInChild:
            continues = True
            raise
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            if not continues:
                Sweep(channel).to_the_end()
                os._exit(0)
    os.close(watch)
    os.write(forked, b"%d" % monitor)
    os.close(forked)
    rename("keeper-guardian")
    wait_for(monitor)
    Sweep(channel).to_the_end()
    os._exit(0)


def lift(fd: int) -> int:
    """Move an open file to a descriptor number that programs do not use themselves; return it."""
    high = copy_high(fd)
    os.close(fd)
    return high


def copy_high(fd: int) -> int:
    """Copy a descriptor to LEASES_FROM or above; with a low limit, to the upper half of it."""
    allowed = os.sysconf("SC_OPEN_MAX")  # the soft limit (getconf(3)); -1: there is none
    least = min(LEASES_FROM, allowed // 2) if allowed >= 0 else LEASES_FROM
    copy: int = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, least)
    return copy


def wait_for(monitor: int) -> None:
    while True:
        pid, status = os.waitpid(-1, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            send_signal(pid, signal.SIGCONT)  # a stopped monitor would keep no time limit
        elif pid == monitor:
            return


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


# ── The monitor ─────────────────────────────────────────────────────────────────────────────────


class Monitor:
    """Runs attempts, one at a time, in one loop that waits for everything at once.

    `gives_back`: an idle monitor leaves when it finds the supervisor stopped, so that others have
    the cards. It tells the supervisor first and reads nothing afterwards, so that it alone decides
    whether a command was begun.
    """

    def __init__(
        self,
        channel: KeeperChannel,
        watch: int,
        leases: list[int],
        environment: dict[bytes, bytes],
        gives_back: bool = False,
    ) -> None:
        self.channel = channel
        self.watch: int | None = watch
        self.leases = leases
        self.environment = environment
        self.attempt: KeeperAttempt | None = None
        self.worker: WorkerPipes | None = None
        self.retirement: Retirement | None = None
        self.pending: tuple[dict[str, object], int] | None = None
        self.early_stop: tuple[str, str, bool] | None = None
        self.spare: PreForked | None = None
        self.spare_at: float | None = time.monotonic() + SPARE_AFTER
        self.leaving = False
        self.supervisor = channel.supervisor() if gives_back else 0
        self.look_at: float | None = None
        self.found_stopped = 0
        self.exec_only = False  # True: jobs exec although this interpreter could run them
        os.setsid()
        prctl(PR_SET_CHILD_SUBREAPER, 1)  # not inherited by fork
        self.waker = Waker()
        rename("keeper-monitor")

    def serve(self) -> None:
        while self.attempt or self.worker or self.pending or not self.leaving:
            ready = self.wait()
            self.waker.clear()
            if self.attempt:  # before the messages: an end that came before a stop is the job's own
                self.attempt.look(ready)
            elif self.spare and self.spare.is_dead():
                self.spare = None
            if self.channel.fd in ready:
                self.listen(ready[self.channel.fd])
            if self.watch in ready:
                self.watch = None  # the guardian is gone: the spawner has adopted this monitor
                self.leaving = True
            if self.attempt:
                self.attempt.advance(time.monotonic())
                if self.attempt.over:
                    self.attempt = None
                    self.spare_at = time.monotonic() + SPARE_AFTER
            if not self.attempt:
                self.mind_worker()
            if self.is_idle() and self.spare_at is not None and time.monotonic() >= self.spare_at:
                self.fork_ahead()
            if self.supervisor:
                self.look_at_supervisor(time.monotonic())

    def is_idle(self) -> bool:
        return not (self.attempt or self.worker or self.retirement or self.pending)

    def look_at_supervisor(self, now: float) -> None:
        """Leave, if idle, and free the leases once the supervisor has been stopped for long."""
        if self.attempt or self.retirement or self.pending or self.leaving:
            self.look_at, self.found_stopped = None, 0
        elif self.look_at is None:
            self.look_at = now + LOOK
        elif now >= self.look_at:
            self.look_at = now + LOOK
            self.found_stopped = self.found_stopped + 1 if is_stopped(self.supervisor) else 0
            if self.found_stopped >= LOOKS:
                self.leave()

    def leave(self) -> None:
        """Leave: tell the supervisor, read no more messages, retire the worker.

        INVARIANT: what the supervisor sends from here on is never read, and never begun.
        """
        self.channel.send({"is": "left"})
        self.channel.fd = -1
        self.leaving = True
        self.look_at = None
        if self.worker:
            self.retire(now=False)

    def fork_ahead(self) -> None:
        """Fork the next attempt's child while idle: no step of a start costs more.

        INVARIANT: no such child beside an attempt or a worker, or ECHILD would prove nothing.
        """
        self.spare_at = None
        if not self.leaving:
            with contextlib.suppress(OSError):  # processes are scarce: the attempt will fork then
                self.spare = PreForked.fork(self)

    def wait(self) -> dict[int, int]:
        poller = select.poll()
        poller.register(self.waker.fd, select.POLLIN)
        if self.watch is not None:
            poller.register(self.watch, select.POLLIN)
        if self.channel.fd >= 0:
            poller.register(self.channel.fd, select.POLLIN)
        milliseconds: float | None = None
        if self.worker and self.worker.outbox:
            poller.register(self.worker.items, select.POLLOUT)
        doing = self.attempt or self.retirement
        if doing:
            for fd in self.attempt.pipes() if self.attempt else ():
                poller.register(fd, select.POLLIN)
        rests = [self.spare_at if self.is_idle() else None, self.look_at]
        times = [doing.next_deadline()] if doing else rests
        at = min((each for each in times if each is not None), default=None)
        if at is not None:
            milliseconds = min(math.ceil(max(0.0, at - time.monotonic()) * 1000), 86_400_000)
        return dict(poller.poll(milliseconds))

    def listen(self, events: int) -> None:
        message, fds = (None, []) if events & select.POLLHUP else self.channel.receive()
        if message is None:
            self.leaving = True
            self.channel.fd = -1  # the socket stays open: it says that this keeper lives
            self.stop("interrupted", SUPERVISOR_GONE, now=False)
        elif message["do"] == "launch":
            self.pending = (message, fds[0])
            self.begin()
        elif message["do"] == "end":
            self.leaving = True
        elif message["do"] == "lend":
            self.channel.send({"is": "lent"}, self.leases)
        elif message["do"] == "retire":
            self.retire(bool(message["now"]), asked=True)
        elif message["attempt"] == (
            self.attempt.id if self.attempt else self.pending and self.pending[0]["attempt"]
        ):
            self.stop(str(message["reason"]), str(message["by"]), bool(message["now"]))

    def stop(self, reason: str, by: str, now: bool) -> None:
        """Stop the running attempt, or the one that waits for a worker to be gone."""
        if self.attempt:
            self.attempt.stop(reason, by, now)
        elif self.pending:
            self.early_stop = (reason, by, now)

    # ── Workers: a process that stays from one attempt to the next ──────────────────────────

    def begin(self) -> None:
        """Start the pending attempt; first end a worker that cannot take it."""
        assert self.pending is not None
        if self.worker and not self.retirement:
            died = self.worker.has_died()  # between items: no attempt has failed by that
            message, file = self.pending
            if died or not message["worker"] or not self.worker.suits(task_of(file)):
                self.retire(now=died)
        if self.retirement:
            return
        (message, file), self.pending = self.pending, None
        self.attempt = KeeperAttempt(self, message, file)
        if self.early_stop:
            self.attempt.stop(*self.early_stop)
            self.early_stop = None
        if self.attempt.over:
            self.attempt = None

    def mind_worker(self) -> None:
        """Between attempts: reap or end the worker; start the pending attempt once it is gone."""
        if self.worker and not self.retirement:
            if self.leaving:
                self.retire(now=False)
            elif self.worker.has_died():
                self.retire(now=True)
        if self.retirement:
            self.retirement.advance(time.monotonic())
            if self.retirement.over:
                asked, self.retirement = self.retirement.asked, None
                self.spare_at = time.monotonic() + SPARE_AFTER
                if asked:
                    self.channel.send({"is": "worker_gone"})
        if self.pending and not self.retirement:
            self.begin()

    def retire(self, now: bool, asked: bool = False) -> None:
        """End the idle worker; `asked`: report that it is gone, at once if there is none."""
        if self.attempt:
            return
        if self.retirement:
            self.retirement.hurry(now)
        elif self.worker:
            self.retirement = Retirement(self, self.worker, now)
        elif asked:
            self.channel.send({"is": "worker_gone"})
            return
        if self.retirement:
            self.retirement.asked = self.retirement.asked or asked

    def reap_worker(self, pid: int) -> bool:
        """Forget the worker if it was the process just reaped, and close its pipes; True if so."""
        if self.worker is None or self.worker.pid != pid:
            return False
        self.worker.close()
        self.worker = None
        return True


def read_spec(fd: int) -> dict[str, object]:
    """Return a whole command. Does not move the file's position: two processes read the file."""
    data, size = b"", os.fstat(fd).st_size
    while len(data) < size:
        data += os.pread(fd, size - len(data), len(data))
    value: dict[str, object] = json.loads(data)
    return value


def task_of(file: int) -> dict[str, object]:
    """Return a worker's item, as it is handed to the worker."""
    task = read_spec(file)["worker"]
    assert isinstance(task, dict)
    return task


# Phases of an attempt. A stop or a timeout sends TERM; what is left at `kill_at` is swept.
#
#   running ──main ends──▶ sweeping ──nothing left──▶ (checking outputs) ──▶ over
#      └─TERM, main ends──▶ ending ──kill_at, or nothing left──▲
#
# A worker's answer ends the attempt as its main process's end would. A worker that stays is not
# swept; one that is to go has its input closed, and the attempt is "ending" until it is gone.
RUNNING, ENDING, SWEEPING, CHECKING = "running", "ending", "sweeping", "checking"


class KeeperAttempt:
    """One start of a job, from the fork to the proof that no process of it is left.

    `spec` is the keeper's part of the command; `file` holds the rest, for the child.
    """

    def __init__(self, keeper: Monitor, spec: dict[str, object], file: int) -> None:
        self.keeper = keeper
        self.spec = spec
        self.file = file
        self.id = str(spec["attempt"])
        self.phase = RUNNING
        self.over = False
        self.pid: int | None = None
        self.status: int | None = None
        self.cause: str | None = None
        self.by = ""
        self.error: str | None = None
        self.kind: str | None = None  # of the error, where it is none of the job's doing
        self.missing: list[str] = []
        self.main_was_killed = False
        self.leftovers = 0
        self.told: set[int] = set()
        self.alone = False
        self.kill_at: float | None = None
        self.exec_pipe: int | None = None
        self.exec_words = b""
        self.helper: ForkedHelper | None = None
        self.helper_pids: set[int] = set()
        self.check_at = self.check_limit = 0.0
        self.cut: tuple[str, str] | None = None
        self.checked = False
        self.sweep: Sweep | None = None
        self.fork_at: float | None = None
        self.fork_pause = 0.01
        self.ready_by: float | None = None
        self.forker = False  # True: `pid` is the forker's, which is to fork the job
        self.timeout = _seconds(spec["timeout"])
        self.idle_timeout = _seconds(spec["idle_timeout"])
        self.grace = _seconds(spec["grace"]) or 0.0
        self.asked = (time.monotonic(), time.time())
        self.started: tuple[float, float] | None = None
        self.silent_since = self.looked_at = self.asked[0]
        self.log_seen: list[int] = []
        self.idle_at: float | None = None
        self.since = time.clock_gettime_ns(CLOCK_REALTIME_COARSE)
        self.end: int | None = None
        self.task = task_of(file) if spec["worker"] else None
        self.clock = self.asked[0]
        self.loading = False
        self.keep = False
        self.note = ""
        self.term_at: float | None = None
        self.answered_at: tuple[float, float] | None = None
        try:
            self.lay_out_end()
        except OSError as problem:
            self.error = f"cannot lay out {shown(spec['end'])}: {problem.strerror}"
            self.kind = NO_SPACE if problem.errno == errno.ENOSPC else None
            self.finish()
            return
        self.launch()

    def lay_out_end(self) -> None:
        """Create the end file and allocate its blocks, so that a full disk cannot lose the end."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOCTTY
        self.end = os.open(raw(self.spec["end"]), flags, 0o600)
        try:
            os.posix_fallocate(self.end, 0, END_SIZE)
        except OSError as problem:
            if problem.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                os.unlink(raw(self.spec["end"]))
                os.close(self.end)
                self.end = None
                raise
            os.pwrite(self.end, bytes(END_SIZE), 0)
        # Outputs are stamped by the file server's clock, which may be behind ours.
        self.since = min(self.since, os.fstat(self.end).st_mtime_ns)

    # ── Start ───────────────────────────────────────────────────────────────────────────────

    def launch(self) -> None:
        """Fork the job; retry later while processes or descriptors are scarce."""
        self.fork_at = None
        if self.task and self.keeper.worker:
            self.take_over(self.keeper.worker)
            return
        spare, self.keeper.spare, self.keeper.spare_at = self.keeper.spare, None, None
        pipes: list[int] = []
        try:
            for _ in (1, 2) if self.task else ():
                pipes.extend(os.pipe())
            theirs = (pipes[0], pipes[3]) if pipes else ()
            if spare is None or not spare.begin(self.file, theirs):
                spare = PreForked.fork(self.keeper)
                spare.begin(self.file, theirs)
        except OSError as problem:
            for fd in pipes:
                os.close(fd)
            if problem.errno not in SCARCE:
                raise
            self.fork_at = time.monotonic() + self.fork_pause
            self.fork_pause = min(self.fork_pause * 2, 1.0)
            return
        self.pid, self.exec_pipe = spare.pid, spare.exec_pipe
        self.forker, self.exec_words = spare.forker, spare.words
        self.started = (time.monotonic(), time.time())
        if self.task:
            os.close(pipes[0])
            os.close(pipes[3])
            self.loading = True
            to, back = pipes[1], pipes[2]
            self.keeper.worker = WorkerPipes(self.id, self.task, self.grace, spare.pid, to, back)
            self.keeper.worker.hand(self.task, fresh=True)
        if at_fork is not None and not self.keeper.exec_only:
            self.ready_by = time.monotonic() + at_fork_limit
        self.start_clock()
        self.hear_fork()

    def start_cold(self, what: str) -> None:
        """Kill the child that hooks held up, and fork another one, which executes the job.

        The first child was not the job yet: its log does not exist.
        """
        assert self.pid is not None
        send_signal(-self.pid, signal.SIGKILL)
        Sweep(self.keeper.channel, self.id).to_the_end()
        if self.exec_pipe is not None:
            os.close(self.exec_pipe)
        self.pid = self.exec_pipe = self.ready_by = None
        self.forker, self.exec_words, self.error = False, b"", None
        self.keeper.exec_only = True
        why = f"{AT_FORK} {what}"
        message = {"is": "cold", "attempt": self.id, "why": why, "for_good": True}
        self.keeper.channel.send(message)
        self.asked = (time.monotonic(), time.time())
        self.launch()

    def send_started(self) -> None:
        keeper = os.getpid()
        self.keeper.channel.send(
            {"is": "started", "attempt": self.id, "pid": self.pid, "keeper": keeper}
        )

    def take_over(self, worker: WorkerPipes) -> None:
        """Hand the item to the waiting worker; nothing is forked."""
        self.pid = worker.pid
        self.started = (time.monotonic(), time.time())
        self.start_clock()
        worker.grace = self.grace
        assert self.task is not None
        worker.hand(self.task, fresh=False)
        self.send_started()

    def start_clock(self) -> None:
        """Start the timeout and the idle timeout; a worker's loading has a limit of its own."""
        self.clock = self.silent_since = self.looked_at = time.monotonic()
        if self.idle_timeout and not self.loading:
            self.idle_at = self.clock + self.idle_timeout

    def limit(self) -> float | None:
        if self.loading and self.task and self.task["load_timeout"] is not None:
            return _seconds(self.task["load_timeout"])
        return self.timeout

    def read_exec_pipe(self) -> None:
        """Read the exec's result: words are an error; end of file without words is a start.

        A child that was killed before its exec shows as a start too.
        """
        if self.exec_pipe is None:
            return
        over = False
        with contextlib.suppress(BlockingIOError):
            while not over:
                words = os.read(self.exec_pipe, 65536)
                self.exec_words += words
                over = not words
        self.hear_fork()
        if not over:
            return
        os.close(self.exec_pipe)
        self.exec_pipe = None
        if self.exec_words.startswith(FULL):
            self.exec_words, self.kind = self.exec_words[len(FULL) :], NO_SPACE
        if self.exec_words:
            self.error = self.exec_words.decode("utf-8", "replace")
        elif self.ready_by is None:
            self.send_started()

    def hear_fork(self) -> None:
        """Take the forker's line and READY from what came through the exec's pipe.

        The line is the process id of the job, which is this keeper's child once the forker is gone.
        """
        number, line, rest = self.exec_words.partition(b"\n")
        if self.forker and line and has_ended(self.pid):
            self.forker, self.pid, self.exec_words = False, int(number), rest
        if self.ready_by is not None and not self.forker and self.exec_words.startswith(READY):
            self.ready_by, self.exec_words = None, self.exec_words[len(READY) :]
            self.start_clock()

    # ── What happens meanwhile ──────────────────────────────────────────────────────────────

    def pipes(self) -> list[int]:
        fds = [self.helper.fd] if self.helper else []
        if self.task and self.keeper.worker and not self.keeper.worker.silent:
            fds.append(self.keeper.worker.answers)
        return fds + ([self.exec_pipe] if self.exec_pipe is not None else [])

    def next_deadline(self) -> float | None:
        now = time.monotonic()
        if self.phase == SWEEPING and self.sweep:
            return now + self.sweep.nap
        if self.phase == CHECKING:
            return min(self.check_at, self.check_limit)
        if self.phase == ENDING or self.kill_at is not None:
            return min((at for at in (self.term_at, self.kill_at) if at is not None), default=None)
        if self.ready_by is not None:
            return self.ready_by
        times = [self.fork_at, self.idle_at]
        limit = self.limit()
        if limit:
            times.append(self.clock + limit)
        return min((at for at in times if at is not None), default=None)

    def look(self, ready: dict[int, int]) -> None:
        """Handle what has happened: the exec's result, dead children, a helper's answer."""
        unready = self.ready_by is not None and self.cause is None and self.main_ended()
        self.read_exec_pipe()
        if unready and self.ready_by is not None:
            self.start_cold("ended the process")
        self.hear_worker()
        self.reap()  # before the helper: a job that has ended cannot be too silent
        if self.helper and self.helper.fd in ready and self.helper.read():
            answer, self.helper = self.helper.answer, None
            self.take_answer(answer)

    def reap(self) -> None:
        if self.pid is None:
            return
        if self.status is None and self.cause is None and self.main_ended():
            # While the main process is unreaped, its group is certainly the job's: one signal that
            # no fork escapes.
            send_signal(-self.pid, signal.SIGKILL)
        self.alone = False
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self.alone = True
                return
            if pid == 0:
                return
            self.note_reaped(pid, status)

    def main_ended(self) -> bool:
        if not has_ended(self.pid):
            return False
        if self.forker:
            self.read_exec_pipe()
        return has_ended(self.pid)

    def note_reaped(self, pid: int, status: int) -> None:
        self.told.discard(pid)
        if self.sweep:
            self.sweep.nap = 0.0005
        if pid == self.pid:
            self.read_exec_pipe()
        if pid == self.pid:
            self.hear_worker()  # its last answer, which it gave before it died
            unanswered = self.keeper.reap_worker(pid) and self.status is None and not self.cause
            self.keep = False
            if unanswered and not self.error and status == 0:
                status, self.note = 1 << 8, "its worker ended, with status 0, before it answered"
            if self.status is None:
                self.status = status
        elif pid in self.helper_pids:
            self.helper_pids.discard(pid)
        elif self.status is not None and not self.main_was_killed and os.WIFSIGNALED(status):
            self.leftovers += os.WTERMSIG(status) == signal.SIGKILL

    def ask(self, function: Callable[..., object], *arguments: object) -> bool:
        """Start a helper that computes the function; False if processes are scarce: try later."""
        self.helper = ForkedHelper.start(function, *arguments)
        if self.helper:
            self.helper_pids.add(self.helper.pid)
        return self.helper is not None

    def take_answer(self, answer: dict[str, list[str]] | None) -> None:
        """Handle a helper's answer. None: it failed (no memory, no file yet); retry in a second."""
        again = time.monotonic() + 1.0
        if self.phase == CHECKING:
            if answer is None:
                self.check_at = again
            else:
                self.conclude(answer["missing"])
        elif self.phase == RUNNING and self.cause is None:
            if answer is None:
                self.idle_at = again
            else:
                self.judge_silence([int(number) for number in answer["log"]])

    def conclude(self, missing: list[str]) -> None:
        self.checked = True
        self.missing = missing
        if self.keep:
            self.drop_helper()
            self.finish()
        else:
            self.start_sweep()  # of the helper

    # ── A worker's item ─────────────────────────────────────────────────────────────────────

    def hear_worker(self) -> None:
        """Handle the worker's answers; kill a worker that gives an invalid one."""
        worker = self.keeper.worker if self.task else None
        if worker is None:
            return
        worker.flush()
        for word in worker.hear():
            if word is not None and "loaded" in word and self.loading:
                self.loading = False
                self.start_clock()
            elif word is not None and word.get("item") == worker.count and self.status is None:
                self.answered(worker, word)
            else:
                self.note = "its worker gave an answer that is none, and was killed"
                self.keep = False
                send_signal(-worker.pid, signal.SIGKILL)

    def answered(self, worker: WorkerPipes, word: dict[str, object]) -> None:
        code = word.get("exit", 0)
        code = code if isinstance(code, int) and 0 <= code < 256 else 1
        self.error = str(word["error"]) if word.get("error") else None
        self.status = code << 8
        self.answered_at = (time.monotonic(), time.time())
        self.keep = not self.cause and not word.get("spoiled") and worker.may_stay()

    def end_worker(self, worker: WorkerPipes, now: float) -> None:
        """End the worker after its item: close its input, TERM after half the grace, then KILL."""
        self.phase = ENDING
        worker.close_input()
        if self.kill_at is None:
            self.term_at = now + self.grace / 2
            self.kill_at = now + self.grace

    # ── What follows from it ────────────────────────────────────────────────────────────────

    def stop(self, reason: str, by: str, now: bool) -> None:
        """Send TERM unless the attempt is over already; `advance` does the rest."""
        at = time.monotonic() + (0.0 if now else self.grace)
        if self.phase == CHECKING:
            self.cut = self.cut or (reason, by)
            self.check_limit = min(self.check_limit, at)
        elif self.phase == SWEEPING or (self.status is not None and not self.cause):
            if now and self.phase == ENDING:  # a worker that has answered
                self.kill_at = at
        elif self.cause is None:
            self.cause, self.by, self.kill_at = reason, by, at
            self.idle_at = None
            if self.pid is not None and not now:
                self.main_ended()  # if a forker has ended, the TERM is for its child
                self.terminate(self.pid)
        elif now:
            self.kill_at = at

    def terminate(self, pid: int) -> None:
        """Send TERM to the process group, once: to many programs a second TERM means "at once".

        CONT follows, or a stopped process would not see the TERM. A child that has not called
        setsid yet has no group.
        """
        for number in (signal.SIGTERM, signal.SIGCONT):
            if not send_signal(-pid, number):
                send_signal(pid, number)

    def advance(self, now: float) -> None:
        if self.over:
            return
        if self.pid is None:
            self.advance_unready(now)
            return
        if self.phase == RUNNING:
            self.advance_running(now)
        if self.phase == ENDING:
            self.advance_ending(now)
        if self.phase == SWEEPING:
            self.advance_sweeping()
        if self.phase == CHECKING:
            self.advance_checking(now)

    def advance_unready(self, now: float) -> None:
        limit = self.limit()
        if limit and now >= self.asked[0] + limit:
            self.cause = self.cause or "timeout"
        if self.cause:
            self.finish()
        elif self.fork_at is not None and now >= self.fork_at:
            self.launch()

    def advance_running(self, now: float) -> None:
        assert self.started is not None
        limit = self.limit()
        if self.status is not None and self.task and self.keeper.worker:
            if self.keep:
                self.check_or_finish()
            else:
                self.end_worker(self.keeper.worker, now)
        elif self.status is not None:
            self.phase = ENDING if self.cause else SWEEPING
            if self.phase == SWEEPING:
                self.start_sweep()
        elif self.kill_at is not None:
            if now >= self.kill_at:
                self.start_sweep()
        elif self.ready_by is not None:
            if now >= self.ready_by:
                self.start_cold(f"had not returned after {at_fork_limit:g} s")
        elif limit and now >= self.clock + limit:
            self.stop("timeout", "", now=False)
        elif self.idle_at is not None and now >= self.idle_at and self.helper is None:
            self.idle_at = None if self.ask(look_at_log, self.file) else now + 1.0

    def judge_silence(self, log: list[int]) -> None:
        """Stop the attempt for its silence, or plan the next look at its log.

        `log` is the log's size and time of change (ns). The time counts only where it is plausible:
        a file server's clock may be wrong.
        """
        assert self.idle_timeout is not None
        now = time.monotonic()
        if log != self.log_seen:
            age = time.time() - log[1] / 1e9
            fits = 0 <= age <= now - self.looked_at + 0.02
            self.silent_since = now - age if fits else now
        self.log_seen, self.looked_at = log, now
        if now >= self.silent_since + self.idle_timeout - 0.005:
            self.stop("idle_timeout", "", now=False)
        else:
            self.idle_at = self.silent_since + self.idle_timeout

    def advance_ending(self, now: float) -> None:
        """Give what the main process left the rest of the grace, then sweep it.

        Processes of its group have had their TERM; a second one means "at once" to many programs.
        """
        assert self.kill_at is not None
        self.drop_helper()
        if self.alone or now >= self.kill_at:
            self.start_sweep()
            return
        if self.term_at is not None and now >= self.term_at and self.keeper.worker:
            self.term_at = None
            self.terminate(self.keeper.worker.pid)
        for pid in children():
            if pid not in self.told and pid != self.pid:
                self.told.add(pid)
                if os.getpgid(pid) != self.pid:
                    send_signal(pid, signal.SIGTERM)
                    send_signal(pid, signal.SIGCONT)

    def start_sweep(self) -> None:
        self.phase = SWEEPING
        self.drop_helper()
        self.sweep = Sweep(self.keeper.channel, self.id)

    def advance_sweeping(self) -> None:
        assert self.sweep is not None
        assert self.pid is not None
        if not self.alone:
            if self.status is None or (self.task and self.keeper.worker):
                self.main_was_killed = True
                send_signal(-self.pid, signal.SIGKILL)
            self.sweep.kill()
            self.reap()
        if self.alone:
            self.check_or_finish()

    def check_or_finish(self) -> None:
        if self.wants_check():
            self.phase = CHECKING
            self.check_at = time.monotonic()
            self.check_limit = self.check_at + OUTPUT_CHECK_LIMIT
        else:
            self.finish()

    def wants_check(self) -> bool:
        return bool(self.spec["outputs"]) and not self.checked and self.has_succeeded()

    def has_succeeded(self) -> bool:
        """Whether the attempt's own status is a success; its outputs may still be missing."""
        codes = self.spec["success_codes"]
        assert isinstance(codes, list)
        if self.cause or self.error or self.status is None:
            return False
        return os.WIFEXITED(self.status) and os.WEXITSTATUS(self.status) in codes

    def advance_checking(self, now: float) -> None:
        if now >= self.check_limit and self.cut:
            self.cause, self.by = self.cut
            self.conclude([])
        elif now >= self.check_limit:
            words = f"(its file system gave no answer within {OUTPUT_CHECK_LIMIT:.0f} s)"
            self.conclude(
                [f"{shown_raw(path)} {words}" for path in raws(read_spec(self.file)["outputs"])]
            )
        elif self.helper is None and now >= self.check_at:
            asked = self.ask(look_for_outputs, self.file, self.since)
            self.check_at = math.inf if asked else now + 1.0

    def drop_helper(self) -> None:
        """Kill the helper and forget it.

        INVARIANT: a helper in `helper_pids` is not reaped yet, so its process id is its own.
        """
        if self.helper:
            os.close(self.helper.fd)
            if self.helper.pid in self.helper_pids:
                send_signal(self.helper.pid, signal.SIGKILL)
            self.helper = None

    # ── The end ─────────────────────────────────────────────────────────────────────────────

    def finish(self) -> None:
        """Record the end: first in the file, then to the supervisor. No process of it is left."""
        self.over = True
        os.close(self.file)
        by = self.spec.get("term_by")
        # Slurm sends TERM to all processes of a job, one by one: the job may have ended at it
        # before it reached us. So a success waits for it a moment; a failure has Slurm's state.
        if by and self.has_succeeded() and signal.sigtimedwait({signal.SIGTERM}, TERM_COMES):
            self.cause, self.by = "interrupted", str(by)
        record = self.record()
        if self.end is not None and self.kind == NO_SPACE:  # nothing was run: it goes again
            os.unlink(raw(self.spec["end"]))
            os.close(self.end)
        elif self.end is not None:
            line = json.dumps(record, separators=(",", ":")).encode()
            with contextlib.suppress(OSError):  # the supervisor is told all the same
                os.pwrite(self.end, b"%08x %s\n" % (binascii.crc32(line), line), 0)
            os.close(self.end)
        kept = self.keeper.worker is not None
        self.keeper.channel.send({"is": "ended", "end": record, "kept": kept, "note": self.note})

    def record(self) -> dict[str, object]:
        """Return the record that `ends.py` reads; it fits the file, however long its paths are."""
        limits = {"timeout": self.limit(), "idle_timeout": self.idle_timeout}
        missing = [clip(path, 900) for path in self.missing[:40]]
        while len(json.dumps(missing)) > 2000:
            missing.pop()
        return {
            "attempt": clip(self.id, 2000),
            "pid": self.pid,
            "status": self.status,
            "cause": self.cause,
            "by": clip(self.by, 600),
            "seconds": limits.get(self.cause or ""),
            "missing": missing,
            "error": self.error and clip(self.error, 2000),
            "kind": self.kind,
            "leftovers": self.leftovers,
            "oom_kills": kills_counted(self.spec.get("oom_kills")),
            "started": self.started,
            "ended": self.answered_at or (time.monotonic(), time.time()),
        }


def kills_counted(file: object) -> int:
    """Return how many processes the kernel killed for memory, by a cgroup's file; else 0."""
    if file:
        with contextlib.suppress(OSError, ValueError), open(raw(file), "rb") as counter:
            for line in counter:
                name, _, number = line.partition(b" ")
                if name == b"oom_kill":
                    return int(number)
    return 0


def clip(text: str, limit: int) -> str:
    """Return as much of `text` as JSON writes in `limit` characters."""
    while len(json.dumps(text)) > limit:
        text = text[: len(text) * 4 // 5] + "…"
    return text


# ── A worker between its items ──────────────────────────────────────────────────────────────────


class WorkerPipes:
    """A process that is handed one item after the other, and the pipes to it."""

    def __init__(
        self, by: str, task: dict[str, object], grace: float, pid: int, items: int, answers: int
    ) -> None:
        self.by = by
        self.key = task["key"]
        self.most = task["items"]
        self.memory = task["memory"]
        self.grace = grace
        self.pid = pid
        self.items = items
        self.answers = answers
        self.count = 0
        self.outbox = b""
        self.words = b""
        self.silent = False
        os.set_blocking(items, False)
        os.set_blocking(answers, False)

    def suits(self, task: dict[str, object]) -> bool:
        """Whether the worker may take this item; not if it has written something unasked."""
        return task["key"] == self.key and not self.hear()

    def hand(self, task: dict[str, object], fresh: bool) -> None:
        self.count += 1
        self.outbox = json.dumps({**task, "item": self.count, "fresh": fresh}).encode() + b"\n"
        self.flush()

    def flush(self) -> None:
        try:
            while self.outbox:
                self.outbox = self.outbox[os.write(self.items, self.outbox) :]
        except BlockingIOError:
            pass
        except OSError:
            self.outbox = b""  # the worker closed its input: it is about to end

    def hear(self) -> list[dict[str, object] | None]:
        """Return the worker's answers since the last call; None for each that is invalid."""
        try:
            while len(self.words) < 65536:
                data = os.read(self.answers, 65536)
                if not data:  # the worker closed its answers: it is about to end
                    self.silent = True
                    break
                self.words += data
        except BlockingIOError:
            pass
        *lines, self.words = self.words.split(b"\n")
        if len(self.words) >= 65536:
            lines, self.words = [*lines, b""], b""
        return [_answer(line) for line in lines]

    def may_stay(self) -> bool:
        """Whether the worker may take another item, by its limits of items and of memory."""
        if self.most is not None and self.count >= int(str(self.most)):
            return False
        return self.memory is None or tree_memory(self.pid) <= int(str(self.memory))

    def has_died(self) -> bool:
        """Whether the worker has died between items; reaps its dead descendants on the way."""
        for pid in children():
            if pid != self.pid:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
        return bool(os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT))

    def close_input(self) -> None:
        if self.items >= 0:
            os.close(self.items)
            self.items, self.outbox = -1, b""

    def close(self) -> None:
        self.close_input()
        os.close(self.answers)


class Retirement:
    """The end of an idle worker: closed input, TERM after half the grace, KILL after all of it."""

    def __init__(self, keeper: Monitor, worker: WorkerPipes, now: bool) -> None:
        self.keeper = keeper
        self.asked = self.over = False
        at = time.monotonic()
        grace = 0.0 if now else worker.grace
        self.term_at: float | None = at + grace / 2
        self.kill_at = at + grace
        self.sweep = Sweep(keeper.channel, worker.by)
        worker.close_input()

    def hurry(self, now: bool) -> None:
        if now:
            self.kill_at = time.monotonic()

    def next_deadline(self) -> float:
        if self.keeper.worker is None or time.monotonic() >= self.kill_at:
            return time.monotonic() + self.sweep.nap
        return min(self.term_at or self.kill_at, self.kill_at)

    def advance(self, now: float) -> None:
        if self.reap():
            return
        worker = self.keeper.worker
        if worker is None or now >= self.kill_at:
            if worker:
                send_signal(-worker.pid, signal.SIGKILL)
            self.sweep.kill()
            self.reap()
        elif self.term_at is not None and now >= self.term_at:
            self.term_at = None
            for number in (signal.SIGTERM, signal.SIGCONT):
                if not send_signal(-worker.pid, number):
                    send_signal(worker.pid, number)

    def reap(self) -> bool:
        """Reap; return True, and be over, once no process is left."""
        try:
            while True:
                pid = os.waitpid(-1, os.WNOHANG)[0]
                if not pid:
                    return False
                self.sweep.nap = 0.0005
                self.keeper.reap_worker(pid)
        except ChildProcessError:
            self.over = True
            return True


def _answer(line: bytes) -> dict[str, object] | None:
    try:
        word = json.loads(line.decode())
    except ValueError:
        return None
    return word if isinstance(word, dict) else None


def tree_memory(pid: int) -> int:
    """Return the resident bytes of a process and its descendants, as far as /proc shows them."""
    page, total, todo = os.sysconf("SC_PAGE_SIZE"), 0, [pid]
    while todo:
        pid = todo.pop()
        try:
            with open(f"/proc/{pid}/statm", "rb") as file:
                total += int(file.read().split()[1]) * page
            for thread in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                    todo.extend(int(number) for number in file.read().split())
        except OSError:
            continue  # the process has ended, or the kernel lacks CONFIG_PROC_CHILDREN
    return total


# ── The job's first moments ─────────────────────────────────────────────────────────────────────


class PreForked:
    """A forked child that waits to hear which job it is to become.

    The kernel kills it when its keeper dies; it exits when the keeper closes its link.
    """

    def __init__(self, pid: int, link: socket.socket, exec_pipe: int, forker: bool) -> None:
        self.pid = pid
        self.link = link
        self.exec_pipe = exec_pipe
        self.forker = forker
        self.words = b""

    @classmethod
    def fork(cls, keeper: Monitor) -> PreForked:
        """Fork a child. Raises OSError if processes or descriptors are scarce."""
        me = os.getpid()
        with contextlib.ExitStack() as stack:
            link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            stack.callback(theirs.close)
            on_failure = stack.enter_context(contextlib.ExitStack())
            on_failure.callback(link.close)
            read, write = os.pipe()
            stack.callback(os.close, write)
            on_failure.callback(os.close, read)
            pid = fork()
            if pid == 0:
                on_failure.close()
                stack.pop_all()  # a job that goes on here unwinds this frame and keeps its files
                become_job(keeper, me, theirs, write)
            os.set_blocking(read, False)
            on_failure.pop_all()
        return cls(pid, link, read, forker=at_fork is not None and not keeper.exec_only)

    def begin(self, file: int, pipes: Sequence[int] = ()) -> bool:
        """Hand the child its job, and for a worker the pipes of items and answers.

        Returns False if the child was dead; it is reaped then.
        """
        fds = struct.pack(f"{1 + len(pipes)}i", file, *pipes)
        try:
            self.link.sendmsg([b"!"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
        except OSError:  # it was killed meanwhile
            self.reap()
            return False
        finally:
            self.link.close()
        return True

    def is_dead(self) -> bool:
        if not has_ended(self.pid) or (self.meet_child() and not has_ended(self.pid)):
            return False
        self.link.close()
        self.reap()
        return True

    def meet_child(self) -> bool:
        """Put an ended forker's child in its place; return True if there is one."""
        if not self.forker:
            return False
        with contextlib.suppress(BlockingIOError):
            self.words += os.read(self.exec_pipe, 65536)
        number, line, rest = self.words.partition(b"\n")
        if line:
            os.waitpid(self.pid, 0)
            self.forker, self.pid, self.words = False, int(number), rest
        return bool(line)

    def reap(self) -> None:
        if has_ended(self.pid):
            self.meet_child()
        os.close(self.exec_pipe)
        send_signal(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def become_job(keeper: Monitor, parent: int, link: socket.socket, pipe: int) -> None:
    """Turn the forked child into its job. Never returns; writes errors in words to the pipe."""
    continues = False
    try:
        settle_in(parent)
        if at_fork is not None and not keeper.exec_only:
            go_on_in_child(parent, pipe)
            at_fork()
            os.write(pipe, READY)
        for fd in keeper.leases:
            os.set_inheritable(fd, True)
        environment = dict(keeper.environment)
        with link:
            spec, pipes = await_spec(link)
        if pipes:
            pipe = copy_high(pipe)
            answers = copy_high(pipes[1])
            os.dup2(pipes[0], 0)
            os.dup2(answers, 3)
        stdio(raw(spec["log"]))
        if spec["hidden"] is not None:
            isolate(raws(spec["hidden"]))
        enter(raw(spec["cwd"]))
        for name in raws(spec["env_unset"]):
            environment.pop(name, None)
        changes = spec["env_set"]
        assert isinstance(changes, dict)
        environment.update((raw(name), raw(value)) for name, value in changes.items())
        if go_on_as_job is not None and spec.get("main") and not keeper.exec_only:
            go_on_as_job(spec, keeper, environment)
        execute(raws(spec["argv"]), environment)
    except ContinueInChild:
        continues = True
        raise
    except Refusal as problem:
        os.write(pipe, (FULL if problem.full else b"") + str(problem).encode("utf-8", "replace"))
    except BaseException as problem:
        os.write(pipe, f"{type(problem).__name__}: {problem}".encode("utf-8", "replace"))
    finally:
        if not continues:
            os._exit(127)


def go_on_in_child(parent: int, pipe: int) -> None:
    """Fork again, in a forker, which exits; return in the child once it is the keeper's own."""
    forker = os.getpid()
    pid = fork_patiently(os.fork)
    if pid:
        os.write(pipe, b"%d\n" % pid)
        os._exit(0)
    while os.getppid() == forker:
        time.sleep(0.0002)
    settle_in(parent)


def await_spec(link: socket.socket) -> tuple[dict[str, object], tuple[int, ...]]:
    """Return the command and a worker's pipes; exit if the keeper closes the link instead."""
    flags = socket.MSG_CMSG_CLOEXEC
    said, ancillary, got, _ = link.recvmsg(1, socket.CMSG_SPACE(3 * 4), flags)
    if not said:
        os._exit(127)
    if not ancillary or got & socket.MSG_CTRUNC:
        raise Refusal(os.strerror(errno.EMFILE))
    fds = ancillary[0][2]
    file, *pipes = struct.unpack(f"{len(fds) // 4}i", fds[: len(fds) // 4 * 4])
    return read_spec(file), tuple(pipes)


class Refusal(Exception):
    """The program could not be started; the text says why. `full`: there was no room on a disk."""

    def __init__(self, text: str, full: bool = False) -> None:
        super().__init__(text)
        self.full = full


def settle_in(parent: int) -> None:
    os.setsid()
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the keeper died before the line above
        os._exit(127)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def stdio(log: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOCTTY
    try:
        fd = os.open(log, flags, 0o600)
    except OSError as problem:
        text = f"cannot create the log {shown_raw(log)}: {problem.strerror}"
        raise Refusal(text, problem.errno == errno.ENOSPC) from None
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)


def enter(cwd: bytes) -> None:
    try:
        os.chdir(cwd)
    except OSError as problem:
        what = {
            errno.ENOENT: "does not exist",
            errno.ENOTDIR: "is not a directory",
            errno.EACCES: "may not be entered (permission denied)",
        }.get(problem.errno or 0, f"cannot be entered: {problem.strerror}")
        raise Refusal(f"the working directory {shown_raw(cwd)} {what}") from None


def execute(argv: list[bytes], environment: dict[bytes, bytes]) -> None:
    """Replace this process by the program, found in the job's own PATH. Raises Refusal."""
    name = argv[0]
    if b"/" in name:
        places = [name]
    else:
        path = environment.get(b"PATH", os.defpath.encode())
        places = [os.path.join(folder or b".", name) for folder in path.split(b":")]
    worst: tuple[int, bytes] | None = None
    for place in places:
        try:
            os.execve(place, argv, environment)
        except OSError as problem:
            code = problem.errno or 0
            searched = b"/" not in name or code in (errno.ENOENT, errno.ENOTDIR)
            absent = searched and not os.path.lexists(place)
            if not absent and worst is None:
                worst = (code, place)
            if not absent and code not in (errno.EACCES, errno.ENOENT, errno.ENOTDIR):
                break
    raise Refusal(why_not(name, worst, argv, environment))


def why_not(
    name: bytes, worst: tuple[int, bytes] | None, argv: list[bytes], env: dict[bytes, bytes]
) -> str:
    if worst is None and b"/" in name:
        return f"there is no program {shown_raw(name)}"
    if worst is None:
        return f"{shown_raw(name)}: not found in the job's PATH"
    code, place = worst
    where = shown_raw(place)
    if os.path.isdir(place):
        return f"{where} is a directory, not a program"
    if code == errno.ENOENT:
        return f"{where} {missing_interpreter(place)}"
    if code == errno.EACCES:
        return (
            f"{where} may not be executed (permission denied): chmod +x it, or name its interpreter"
        )
    if code == errno.ENOEXEC:
        return f"{where} is no program for this machine, and has no #! line: name its interpreter"
    if code == errno.E2BIG:
        size = sum(len(word) + 1 for word in argv)
        size += sum(len(name) + len(value) + 2 for name, value in env.items())
        return f"{where}: arguments and environment are too long for the kernel ({size:,} bytes)"
    return f"{where} cannot be executed: {os.strerror(code)}"


def missing_interpreter(place: bytes) -> str:
    try:
        with open(place, "rb") as file:
            line = file.read(256).split(b"\n", 1)[0]
    except OSError:
        return "is a link to a file that does not exist"
    if not line.startswith(b"#!"):
        return "exists, but the loader it asks for does not (built for another system?)"
    if line.endswith(b"\r"):
        return "has Windows line ends, so its #! line names no interpreter: convert it (dos2unix)"
    words = line[2:].split() or [b""]
    return f"exists, but its interpreter {shown_raw(words[0])} does not"


# ── Strict isolation: a /dev of the job's own, in which the other cards have no nodes ───────────
#
# The process that is to become the job isolates itself, so that its id, its parent, its signals and
# its status stay what they are. What keeps a job from undoing it:
#
#   an ordinary user  The user namespace, without which he could not do it either. The exec takes
#                     the capabilities away that it gave; the kernel locks these mounts in any
#                     namespace that the job makes for itself; and /proc/PID/root, ptrace, setns
#                     and mknod find that outside of it the job has no rights.
#   root              Nothing. It gets the mount namespace alone: in a user namespace of one id it
#                     would be a stranger to all files but its own. It guards against accidents.
#
# /proc is left alone: with anything mounted there, the kernel would allow no /proc to containers
# that the job starts, and /proc/driver/nvidia gives no access to a card, it only names them.


def isolate(hidden: list[bytes]) -> None:
    """Hide these paths below /dev from this process and its descendants. Raises Refusal."""
    try:
        enter_namespaces(os.geteuid(), os.getegid())
        # First of all: on most systems our mounts would otherwise appear in everybody's /dev.
        mount(None, b"/", None, MS_SLAVE | MS_REC)
        remake_dev(frozenset(hidden))
    except OSError as problem:
        why = why_no_isolation(problem)
        raise Refusal(f"strict isolation is not possible here: {why}") from None


def enter_namespaces(uid: int, gid: int) -> None:
    if uid == 0:
        unshare(CLONE_NEWNS)
        return
    unshare(CLONE_NEWNS | CLONE_NEWUSER)
    # A user may map only his own ids, to themselves. Other groups still count when files are
    # opened; setgroups has to be given up, as it could drop a group that a file denies access to.
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{uid} {uid} 1"),
        ("gid_map", f"{gid} {gid} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def remake_dev(hidden: frozenset[bytes]) -> None:
    """Mount a new /dev of links and of single mounts for each node that is not hidden."""
    old = os.open(b"/dev", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        mount(b"tmpfs", b"/dev", b"tmpfs", MS_NOSUID, b"mode=755")
        show_all_but(hidden, b"/proc/self/fd/%d" % old, b"/dev")
        mount(None, b"/dev", None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID)
    finally:
        os.close(old)
    null = os.open(b"/dev/null", os.O_RDWR)
    os.dup2(null, 0)  # instead of the /dev/null that was opened outside
    os.close(null)


def show_all_but(hidden: frozenset[bytes], source: bytes, target: bytes) -> None:
    with os.scandir(source) as entries:
        for entry in entries:
            place = os.path.join(target, entry.name)
            if place in hidden:
                continue
            if entry.is_symlink():
                os.symlink(os.readlink(entry.path), place)
            elif place == b"/dev/ptmx":
                os.symlink(b"pts/ptmx", place)
            elif not entry.is_dir(follow_symlinks=False):
                show_node(entry.path, place)
            elif any(path.startswith(place + b"/") for path in hidden):
                os.mkdir(place)
                os.chmod(place, stat.S_IMODE(entry.stat().st_mode))
                show_all_but(hidden, entry.path, place)
            else:
                show_directory(entry.path, place)


def show_node(source: bytes, place: bytes) -> None:
    os.close(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    try:
        mount(source, place, None, MS_BIND)
    except FileNotFoundError:  # the node vanished meanwhile
        os.unlink(place)


def show_directory(source: bytes, place: bytes) -> None:
    """Mount a directory with what is mounted below it (/dev/shm, /dev/mqueue, /dev/hugepages).

    Pseudo-terminals are the exception: a ptmx node looks for them beside itself in the file system
    where it was made, and finds none if it is mounted alone. So ptmx becomes a link, as in
    containers, to an instance of devpts of the job's own.
    """
    os.mkdir(place)
    if place == b"/dev/pts" and not os.path.islink(os.path.dirname(source) + b"/ptmx"):
        mount(b"devpts", place, b"devpts", MS_NOSUID, b"newinstance,ptmxmode=0666,mode=620")
    else:
        mount(source, place, None, MS_BIND | MS_REC)


def unshare(flags: int) -> None:
    if libc.unshare(flags):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), "unshare")


def mount(
    source: bytes | None, target: bytes, kind: bytes | None, flags: int, data: bytes | None = None
) -> None:
    if libc.mount(source, target, kind, ctypes.c_ulong(flags), data):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), f"mount {shown_raw(target)}")


def why_no_isolation(problem: OSError) -> str:
    """Return what forbids isolation here and what to do, in words.

    Sources: user_namespaces(7), the kernel's and Ubuntu's documentation of these settings.
    """
    code, uid = problem.errno, os.geteuid()
    if code in (errno.ENOSPC, errno.EUSERS) and problem.filename == "unshare":
        limits = {name: setting(f"user/max_{name}_namespaces") for name in ("user", "mnt")}
        told = ", ".join(f"user.max_{name}_namespaces is {value}" for name, value in limits.items())
        return f"the limit of namespaces is reached ({told}): an administrator can raise it"
    if code in (errno.EPERM, errno.EACCES):
        if uid and setting("kernel/unprivileged_userns_clone") == "0":
            name = "kernel.unprivileged_userns_clone"
            return (
                f"users may make no namespaces ({name} is 0): `sudo sysctl -w {name}=1` allows it"
            )
        if uid and setting("kernel/apparmor_restrict_unprivileged_userns") == "1":
            name = "kernel.apparmor_restrict_unprivileged_userns"
            return (
                f"AppArmor lets users make no namespaces ({name} is 1): `sudo sysctl -w {name}=0`,"
                f" or a profile with `userns,` for {os.path.realpath(sys.executable)}, allows it"
            )
        if uid == 0:
            return (
                "root may mount nothing here, as in a container: start it with `--cap-add"
                " SYS_ADMIN --security-opt apparmor=unconfined`, or with the cards it is to use"
            )
        if filtered():
            return (
                "a seccomp filter, as containers have, allows no namespaces: run outside of it, or"
                " start it with `--security-opt seccomp=unconfined --security-opt"
                " apparmor=unconfined`"
            )
        if problem.filename == "unshare":
            return "this process may make no namespaces (in a chroot nobody may but root)"
    if code in (errno.EINVAL, errno.ENOSYS) and not os.path.exists("/proc/self/ns/user"):
        return "the kernel was built without user namespaces"
    return f"{problem.filename}: {problem.strerror}"


def setting(name: str) -> str:
    """Return a kernel setting's value; empty if there is no such setting."""
    try:
        with open(f"/proc/sys/{name}") as file:
            return file.read().strip()
    except OSError:
        return ""


def filtered() -> bool:
    with open("/proc/self/status", "rb") as file:
        return any(line.split() == [b"Seccomp:", b"2"] for line in file)


def try_isolation() -> str | None:
    """Return why jobs cannot be isolated here; None if they can. Changes this process's /dev."""
    try:
        isolate([])
    except Refusal as problem:
        return str(problem)
    return None


# ── Helpers that look at the file system: they may hang, the keeper may not ─────────────────────


class ForkedHelper:
    """A forked child that computes one JSON value, while the keeper goes on."""

    def __init__(self, pid: int, fd: int) -> None:
        self.pid = pid
        self.fd = fd
        self.data = b""
        self.answer: dict[str, list[str]] | None = None

    @classmethod
    def start(cls, function: Callable[..., object], *arguments: object) -> ForkedHelper | None:
        """Fork a helper that computes the function; None if processes or descriptors are scarce."""
        me = os.getpid()
        pipe: tuple[int, ...] = ()
        try:
            pipe = os.pipe()
            pid = fork()
        except OSError:
            for fd in pipe:
                os.close(fd)
            return None
        if pid == 0:
            try:
                settle_in(me)
                os.write(pipe[1], json.dumps(function(*arguments)).encode())
            finally:
                os._exit(0)
        os.close(pipe[1])
        os.set_blocking(pipe[0], False)
        return cls(pid, pipe[0])

    def read(self) -> bool:
        """Read what has come; return True once the answer is complete."""
        try:
            while True:
                data = os.read(self.fd, 65536)
                if not data:
                    break
                self.data += data
        except BlockingIOError:
            return False
        self.answer = json.loads(self.data) if self.data else None
        os.close(self.fd)
        return True


def look_at_log(file: int) -> dict[str, list[int]]:
    seen = os.stat(raw(read_spec(file)["log"]))
    return {"log": [seen.st_size, seen.st_mtime_ns]}


def look_for_outputs(file: int, since: int) -> dict[str, list[str]]:
    """Return the outputs that are missing, each with what is wrong with it."""
    missing = []
    for path in raws(read_spec(file)["outputs"]):
        fault = fault_of_pattern(path, since)
        if fault is not None:
            missing.append(shown_raw(path) + fault)
    return {"missing": missing}


def fault_of_pattern(pattern: bytes, since: int) -> str | None:
    """Return what is wrong with an output; None if it, or one match of its pattern, is good."""
    import glob  # in the helper alone

    fault = " (absent)"
    paths = [pattern] if os.path.lexists(pattern) else glob.iglob(pattern, recursive=True)
    for path in paths:
        found = fault_of_file(path, since)
        if found is None:
            return None
        fault = found
    return fault


def fault_of_file(path: bytes, since: int) -> str | None:
    try:
        seen = os.stat(path)
        if stat.S_ISDIR(seen.st_mode):
            with os.scandir(path) as entries:
                return None if any(True for _ in entries) else " (an empty directory)"
    except OSError as problem:
        return " (absent)" if problem.errno == errno.ENOENT else f" ({problem.strerror})"
    if seen.st_size == 0:
        return " (empty)"
    return None if seen.st_mtime_ns >= since else " (older than the attempt)"


# ── Bytes that came through JSON as Latin-1, one character each ─────────────────────────────────


def raw(value: object) -> bytes:
    return str(value).encode("latin-1")


def raws(values: object) -> list[bytes]:
    assert isinstance(values, list)
    return [raw(value) for value in values]


def shown_raw(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def shown(value: object) -> str:
    return shown_raw(raw(value))


def _seconds(value: object) -> float | None:
    return None if value is None else float(str(value))


def main() -> None:
    if sys.argv[1] == "try-isolation":
        sys.exit(try_isolation())
    signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals() - HEARD_SIGNALS)
    rename("keeper-spawner")
    os.chdir("/")
    control = int(sys.argv[1])
    close_all_but({0, 1, 2, control})
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)  # a job's defaults, whatever we inherited
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    spawner = SpawnServer(control)
    gc.collect()
    gc.freeze()  # forked keepers share these objects, and no collection copies their pages
    spawner.serve()


if __name__ == "__main__":
    main()
