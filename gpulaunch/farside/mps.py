"""Guards the control daemon of CUDA's Multi-Process Service on one card; runs as a keeper's job.

    mps DIRECTORY PROGRAM START QUIT GRACE

    launcher ── "grace 30", "end" ──▶ guard ─ starts, asks ─▶ daemon ─ starts ─▶ server ◀─ clients
             ◀─ "ready", "failed WHY", "died WHY", "left" ──┘

DIRECTORY is the guard's to remove. It holds `pipe`, where the daemon listens for its clients, and
`launcher`, the socket of whoever started all this. PROGRAM is nvidia-cuda-mps-control. The others
are seconds: until the daemon has a server that answers, until it has ended after `quit`, and for
which clients may live on once TERM has come.

INVARIANT: the daemon ends after its clients. A client whose server is gone fails, so "end" is said
once there are none; after TERM, which keepers send when the launcher is gone, clients are waited
for. What they need is over by then in any case: their own keepers end them.

A launcher that is stopped (Ctrl-Z) keeps no card on which nothing of it runs: then the guard ends
by itself ("left").

The daemon is in a session of its own, since keepers signal the whole group, and dies with the
guard. If both keepers of the guard are killed together, the guard takes the kernel's signal for
their death as TERM, and ends all this in order. A monitor that outlives all processes above it
kills the guard at once: then DIRECTORY is left, and the next launcher removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import time

from .contain.signals import Signals
from .kernel import PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG, children, prctl, send_signal
from .proc import is_stopped
from .wire import peer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

ASK_TIMEOUT = 5.0  # seconds for one answer of the daemon
PAUSE = 0.05  # seconds between two questions, at first
LONGEST_PAUSE = 0.25
LOOK_PERIOD = 2.0  # seconds between two looks whether the launcher is stopped
KILL_TIMEOUT = 8.0  # seconds for which what was killed is waited for; keepers go on after that


def main() -> None:
    directory, program = sys.argv[1:3]
    start, quits, grace = map(float, sys.argv[3:6])
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    lock = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    fcntl.flock(lock, fcntl.LOCK_SH)  # while it is held, nobody takes DIRECTORY for a leftover
    guard = MpsGuard(
        program, LaunchersEnd(os.path.join(directory, "launcher"), grace), start, quits
    )
    try:
        fine = guard.run()
    finally:
        guard.sweep()
        shutil.rmtree(directory, ignore_errors=True)
    sys.exit(0 if fine else 1)


class LaunchersEnd:
    """The connection to the launcher. `grace`: seconds that clients may live on after TERM."""

    def __init__(self, path: str, grace: float) -> None:
        self.grace = grace
        self.ends = False
        self._heard = b""
        self._link: socket.socket | None = socket.socket(socket.AF_UNIX)
        try:
            self._link.connect(path)
        except OSError:  # it is gone: TERM comes, or has come
            self._hang_up()

    def is_stopped(self) -> bool:
        """Tell whether the launcher is there, and suspended."""
        return self._link is not None and is_stopped(peer(self._link)[0])

    def filenos(self) -> list[int]:
        return [] if self._link is None else [self._link.fileno()]

    def say(self, words: str) -> None:
        print("gpulaunch: " + words, flush=True)
        with contextlib.suppress(OSError):
            if self._link is not None:
                self._link.sendall(words.encode("utf-8", "replace") + b"\n")

    def hear(self) -> None:
        """Take in what the launcher has said."""
        try:
            data = b"" if self._link is None else self._link.recv(4096)
        except OSError:
            data = b""
        if not data:
            self._hang_up()
        *lines, self._heard = (self._heard + data).split(b"\n")
        for line in lines:
            word, _, value = line.decode().partition(" ")
            if word == "grace":
                self.grace = max(self.grace, float(value))
            elif word == "end":
                self.ends = True

    def _hang_up(self) -> None:
        if self._link is not None:
            self._link.close()
        self._link = None


class MpsGuard:
    """The daemon and its end. `start` and `quits`: seconds, as in the module's text."""

    def __init__(self, program: str, launcher: LaunchersEnd, start: float, quits: float) -> None:
        self.program = program
        self.launcher = launcher
        self.start = start
        self.quits = quits
        self.signals = Signals()
        self.daemon: subprocess.Popen[bytes] | None = None

    def run(self) -> bool:
        """Serve until the end; return False where the daemon failed or died."""
        try:
            self.daemon = subprocess.Popen(
                [self.program, "-f"],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                close_fds=False,  # it holds the card's lease, as every process of a job does
                preexec_fn=going_along(),  # noqa: PLW1509 - it has one thread
            )
        except OSError as error:
            self.launcher.say("failed %s: %s" % (self.program, error.strerror))
            return False
        why = self._why_not_up()
        if why:
            self.launcher.say("failed " + why)
            return False
        if self._is_over:  # before it was ready, so that nobody came to be its client
            return True
        self.launcher.say("ready")
        why = self._serve()
        if why:
            self.launcher.say("died " + why)
            return False
        if self.launcher.ends or self._clients_end():
            self._quit()
        return True

    def _serve(self) -> str:
        """Wait until the daemon is to end; return how it ended before that, if it did."""
        stopped = False
        while not self._is_over:
            self._wait(time.monotonic() + LOOK_PERIOD)
            why = self._death()
            if why:
                return why
            before, stopped = stopped, self.launcher.is_stopped()
            if before and stopped and not self._has_clients():
                self.launcher.say("left")
                self.launcher.ends = True
        return ""

    @property
    def _is_over(self) -> bool:
        return self.signals.asked or self.launcher.ends

    def _wait(self, until: float | None) -> None:
        """Wait for a signal, the launcher's word, or until then (monotonic seconds)."""
        ready = self.signals.wait(until, *self.launcher.filenos())
        self.signals.take()
        if set(ready) & set(self.launcher.filenos()):
            self.launcher.hear()

    def _death(self) -> str:
        """Return how the daemon ended; empty while it lives."""
        assert self.daemon is not None
        status = self.daemon.poll()
        if status is None:
            return ""
        how = "killed by signal %d" % -status if status < 0 else "status %d" % status
        return "the control daemon ended (%s)" % how

    # ── The beginning ───────────────────────────────────────────────────────────────────────────

    def _why_not_up(self) -> str:
        """Wait for a server that answers; return why there is none. Empty also when all is over."""
        until, asked, pause, server = time.monotonic() + self.start, False, PAUSE, False
        while not self._is_over:
            why = self._death()
            if why:
                return why
            if time.monotonic() >= until:
                who = "server" if asked else "control daemon"
                return "no %s answered within %g s" % (who, self.start)
            servers = self._servers()
            if servers is not None and not asked:
                # Else the first client would have it started, and might be refused meanwhile.
                asked = self._ask("start_server -uid %d" % os.geteuid()) is not None
                servers = self._servers()
            for pid in servers or ():
                status = self._ask("get_server_status %d" % pid)
                server = status is None or "INITIALIZING" not in status
            if server:
                return ""
            self._wait(time.monotonic() + pause)
            pause = min(pause * 1.5, LONGEST_PAUSE)
        return ""

    # ── The end ─────────────────────────────────────────────────────────────────────────────────

    def _clients_end(self) -> bool:
        """Wait until no client is left, or the daemon; return False where some stay too long."""
        began = time.monotonic()
        while not self._death() and self._has_clients():
            now = time.monotonic()
            if now - began >= self.launcher.grace:
                self.launcher.say("clients are still there after %g s" % self.launcher.grace)
                return False
            self._wait(now + LONGEST_PAUSE)
        return True

    def _has_clients(self) -> bool:
        """Tell whether a client is left, or may be: the daemon did not say, or it does not know it.

        A job that has not begun CUDA yet is no client to the daemon.
        """
        if to_be_clients():
            return True
        servers = self._servers()
        if servers is None:
            return True
        lists = (self._ask("get_client_list %d" % pid) for pid in servers)
        return any(words is None or pids_in(words) for words in lists)

    def _quit(self) -> None:
        """Have the daemon end, and wait for that; the sweep ends it where it does not."""
        until = time.monotonic() + self.quits
        if self._death() or self._ask("quit", self.quits) is None:
            return
        while not self._death() and time.monotonic() < until:
            self._wait(until)

    def sweep(self) -> None:
        """Kill all that is left of the daemon and its servers."""
        until = time.monotonic() + KILL_TIMEOUT
        while time.monotonic() < until:
            for pid in children():
                send_signal(pid, signal.SIGKILL)
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                return
            time.sleep(0.001)

    # ── What is asked of the daemon ─────────────────────────────────────────────────────────────

    def _servers(self) -> list[int] | None:
        """Return the servers' PIDs; None where the daemon does not answer."""
        words = self._ask("get_server_list")
        return None if words is None else pids_in(words)

    def _ask(self, command: str, limit: float = ASK_TIMEOUT) -> str | None:
        """Return what the daemon answers; None where it refuses, or takes longer than the limit."""
        try:
            done = subprocess.run(
                [self.program],
                input=command.encode() + b"\n",
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=limit,
                check=False,
                preexec_fn=going_along(),
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return None if done.returncode else done.stdout.decode("utf-8", "replace")


def pids_in(words: str) -> list[int]:
    return [int(word) for word in words.split() if word.isdigit()]


def to_be_clients() -> bool:
    """Tell whether processes have the guard's daemon in their environment, beside its own."""
    own = b"GPULAUNCH_MPS=" + os.environb[b"GPULAUNCH_MPS"]
    daemon = b"CUDA_MPS_PIPE_DIRECTORY=" + os.environb[b"CUDA_MPS_PIPE_DIRECTORY"]
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open("/proc/%s/environ" % name, "rb") as file:
                variables = file.read().split(b"\0")
        except OSError:  # another user's, or gone
            continue
        if daemon in variables and own not in variables:
            return True
    return False


def going_along() -> Callable[[], None]:
    """Return what has a child killed when the guard is gone."""
    guard = os.getpid()

    def bind() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        if os.getppid() != guard:
            os._exit(127)

    return bind
