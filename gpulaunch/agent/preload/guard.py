"""The guard: starts a preload server, and watches it until it serves."""

from __future__ import annotations

import json
import os
import select
import signal
import time

from ..kernel import (
    PR_SET_CHILD_SUBREAPER,
    Waker,
    become_keeper,
    children,
    prctl,
    send_signal,
)
from ..wire import KeeperChannel, raw, raw_all, raw_dict, read_spec, shown
from .pairs import settle_in

LOG = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOCTTY
AT_FORK = "what is called at forks (os.register_at_fork, pthread_atfork)"
FORKING, FORKED = b"forking\n", b"forked\n"  # what the server says before and after its trial fork


class Guard:
    """The process that watches a server until it serves."""

    def __init__(self, control: int, spec: int) -> None:
        become_keeper("keeper-preload", {control, spec})
        self.spec = read_spec(spec)
        self.forking = False
        self.channel = KeeperChannel(control)
        self.waker = Waker()
        self.report, write = os.pipe()
        self.server = self.start(control, spec, write)
        os.close(write)

    def start(self, control: int, spec: int, report: int) -> int:
        me = os.getpid()
        pid = os.fork()
        if pid:
            return pid
        try:
            settle_in(me)
            log = os.open(raw(self.spec["log"]), LOG, 0o600)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.chdir(raw(self.spec["cwd"]))
            fds = [report, control, spec]
            for fd in fds:
                os.set_inheritable(fd, True)
            env = raw_dict(self.spec["env"])
            env[b"GPULAUNCH_PRELOAD"] = b"1:%d:%d:%d" % tuple(fds)
            argv = raw_all([*self.spec["start"], "-c", "pass"])
            os.execve(raw(self.spec["python"]), argv, env)
        except OSError as problem:
            refuse(report, f"{problem.strerror}: {shown(problem.filename)}")
        os._exit(1)

    def watch(self) -> None:
        """Watch until the server serves, or never will; then wait for its end."""
        end = time.monotonic() + float(self.spec["limit"])
        said = b""
        while True:
            poller = select.poll()
            for fd in (self.report, self.waker.fd, self.channel.fd):
                poller.register(fd, select.POLLIN)
            ready = dict(poller.poll(max(0, end - time.monotonic()) * 1000))
            self.waker.clear()
            if self.report in ready:
                words = os.read(self.report, 65536)
                said += words
                for stage, key in ((FORKING, "at_fork"), (FORKED, "limit")):
                    if said.startswith(stage):
                        said, self.forking = said[len(stage) :], stage == FORKING
                        end = time.monotonic() + float(self.spec[key])
                if not words or said.endswith(b"\n"):
                    break
            elif self.channel.fd in ready:
                self.give_up()
            elif time.monotonic() >= end:
                self.give_up(self.what_took_long())
            else:
                self.reap()
        answer = json.loads(said) if said else {"refused": self.how_it_ended()}
        if "refused" in answer:
            self.give_up(str(answer["refused"]))
        prctl(PR_SET_CHILD_SUBREAPER, 0)
        # A blocking send, unlike keepers': without this message the supervisor would wait for ever.
        self.channel.socket.send(json.dumps({"is": "ready", **answer}).encode())
        self.channel.socket.close()
        os.close(self.report)
        # From here on the supervisor sees by the end of file if the server fails.
        os.waitpid(self.server, 0)

    def what_took_long(self) -> str:
        if self.forking:
            return f"{AT_FORK} had not returned after {float(self.spec['at_fork']):g} s"
        return f"importing took longer than {float(self.spec['limit']):g} s"

    def reap(self) -> None:
        """Reap what imports started and left behind, but not the server: see `how_it_ended`."""
        for pid in children():
            if pid != self.server:
                os.waitpid(pid, os.WNOHANG)

    def how_it_ended(self) -> str:
        _, status = os.waitpid(self.server, 0)
        what = AT_FORK if self.forking else "importing"
        if os.WIFSIGNALED(status):
            return f"{what} ended with signal {os.WTERMSIG(status)}"
        if os.WEXITSTATUS(status) or self.forking:
            return f"{what} ended the interpreter with status {os.WEXITSTATUS(status)}"
        return "it does not begin with what PYTHONPATH names (sitecustomize)"

    def give_up(self, why: str = "") -> None:
        """Kill the server and all below it, then tell the supervisor why, and exit."""
        kill_all()
        if why:
            self.channel.send({"is": "refused", "why": why})
        os._exit(0)


def kill_all() -> None:
    """Kill all descendants; return once none is left.

    It kills direct children until waitpid says ECHILD: nobody else reaps them, so their numbers are
    theirs, and the kernel hands over a dead child's children before it can be reaped.
    """
    pause = 0.0005
    while True:
        for pid in children():
            send_signal(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pause = 0.0005
        except ChildProcessError:
            return
        time.sleep(pause)
        pause = min(pause * 2, 1.0)


def refuse(report: int, why: str) -> None:
    os.write(report, json.dumps({"refused": why}).encode() + b"\n")
