"""Guards the control daemon of MPS on one card; a keeper runs it as its job.

    guard DIRECTORY PROGRAM START QUIT

    launcher ── TERM, through its keepers ──▶ guard ─ starts, asks ─▶ daemon ─▶ server ◀─ clients
             ◀─ "ready", "failed WHY", "died WHY", through the FIFO `news` of DIRECTORY

DIRECTORY is the guard's to remove. Its file `grace` says how many seconds clients may live on after
TERM. START and QUIT are seconds: until the daemon has a server that answers, and until it has ended
after `quit`.

INVARIANT: the daemon ends after its clients, because a client whose server is gone fails. The
launcher sends TERM when no client is left. Keepers send it when the launcher is gone: then the
guard waits for the clients, which their own keepers end.

The daemon is in a session of its own, because keepers signal the guard's whole group. It dies with
the guard. The guard outlives even both of its keepers, to end all this in order: the kernel sends
it TERM when they die.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress

from gpulaunch.agent import kernel

ASK_TIMEOUT = 5.0
"""Seconds for one answer of the daemon."""
PAUSE = 0.1
"""Seconds between two questions."""
KILL_TIMEOUT = 8.0
"""Seconds to wait for the end of killed processes; keepers go on after that."""
_FOREVER = 3600.0
_HEARD = {signal.SIGTERM, signal.SIGCHLD}


def main() -> None:
    directory, program, start, quits = sys.argv[3:7]
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)
    lock = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    fcntl.flock(lock, fcntl.LOCK_SH)  # nobody takes DIRECTORY for a leftover until the end
    try:
        fine = MpsGuard(directory, program, float(start), float(quits)).run()
    finally:
        _sweep()
        shutil.rmtree(directory, ignore_errors=True)
    sys.exit(0 if fine else 1)


class MpsGuard:
    """The daemon from start to end. `start` and `quits`: seconds, as in the module's text."""

    def __init__(self, directory: str, program: str, start: float, quits: float) -> None:
        self._directory = directory
        self._program = program
        self._start = start
        self._quits = quits
        self._over = False  # TERM has come
        self._news = -1
        with suppress(OSError):  # the launcher is gone: TERM comes
            news = os.path.join(directory, "news")
            self._news = os.open(news, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    def run(self) -> bool:
        """Serve until the end; return False if the daemon failed or died."""
        self._daemon = subprocess.Popen(
            [self._program, "-f"],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            close_fds=False,  # it holds the card's lease, as every process of a job does
            preexec_fn=_going_along(),  # noqa: PLW1509 - this process has one thread
        )
        if why := self._why_not_up():
            self._say("failed " + why)
            return False
        if not self._over:
            self._say("ready")
        while not self._over:
            if why := self._death():
                self._say("died " + why)
                return False
            self._wait(_FOREVER)
        if self._clients_end() and self._ask("quit", self._quits) is not None:
            self._wait(self._quits)  # then `_sweep` ends what is left
        return True

    def _say(self, words: str) -> None:
        print("gpulaunch: " + words, flush=True)
        with suppress(OSError):  # the launcher is gone
            os.write(self._news, words.encode("utf-8", "replace") + b"\n")

    def _wait(self, seconds: float) -> None:
        """Wait so long, until TERM comes, or until the daemon has ended."""
        until = time.monotonic() + seconds
        while not self._death() and (left := until - time.monotonic()) > 0:
            heard = signal.sigtimedwait(_HEARD, left)
            if heard is not None and heard.si_signo == signal.SIGTERM:
                self._over = True
                return

    def _death(self) -> str:
        """Return how the daemon ended; empty while it lives."""
        status = self._daemon.poll()
        if status is None:
            return ""
        how = f"killed by signal {-status}" if status < 0 else f"status {status}"
        return f"the control daemon ended ({how})"

    def _why_not_up(self) -> str:
        """Wait for a server that answers; return why there is none. Empty also after TERM."""
        until, asked = time.monotonic() + self._start, False
        while not self._over and not (why := self._death()):
            if time.monotonic() >= until:
                who = "server" if asked else "control daemon"
                return f"no {who} answered within {self._start:g} s"
            # Otherwise the first client has it started, and may be refused meanwhile.
            asked = asked or self._ask(f"start_server -uid {os.geteuid()}") is not None
            if asked and self._server_answers():
                return ""
            self._wait(PAUSE)
        return "" if self._over else why

    def _server_answers(self) -> bool:
        servers = [word for word in (self._ask("get_server_list") or "").split() if word.isdigit()]
        states = [self._ask(f"get_server_status {pid}") for pid in servers]
        return any(state is None or "INITIALIZING" not in state for state in states)

    def _clients_end(self) -> bool:
        """Wait until no client is left; return False if some stay longer than their grace."""
        began = time.monotonic()
        while not self._death() and _clients():
            with open(os.path.join(self._directory, "grace")) as file:
                grace = float(file.read())
            if time.monotonic() - began >= grace:
                self._say(f"clients are still there after {grace:g} s")
                return False
            self._wait(PAUSE)
        return True

    def _ask(self, command: str, limit: float = ASK_TIMEOUT) -> str | None:
        """Return the daemon's answer; None if it refuses, or takes longer than the limit."""
        try:
            done = subprocess.run(
                [self._program],
                input=command.encode() + b"\n",
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=limit,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return None if done.returncode else done.stdout.decode("utf-8", "replace")


def _clients() -> bool:
    """Return True while a process has the daemon in its environment: a client, or soon one.

    The guard's own processes have its mark beside it.
    """
    own = b"GPULAUNCH_MPS=" + os.environb[b"GPULAUNCH_MPS"]
    daemon = b"CUDA_MPS_PIPE_DIRECTORY=" + os.environb[b"CUDA_MPS_PIPE_DIRECTORY"]
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):  # another user's, or gone
            with open(f"/proc/{name}/environ", "rb") as file:
                variables = file.read().split(b"\0")
            if daemon in variables and own not in variables:
                return True
    return False


def _sweep() -> None:
    """Kill all that is left of the daemon and its servers, which this process has adopted."""
    until = time.monotonic() + KILL_TIMEOUT
    while time.monotonic() < until and (left := kernel.children()):
        for pid in left:
            kernel.send_signal(pid, signal.SIGKILL)
            os.waitpid(pid, os.WNOHANG)
        time.sleep(0.001)


def _going_along() -> Callable[[], None]:
    """Return what has a child killed when the guard is gone."""
    guard = os.getpid()

    def bind() -> None:
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        if os.getppid() != guard:
            os._exit(127)

    return bind
