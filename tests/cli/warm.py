"""The command, forked from a process that has imported it: a start without Python's own.

Half of what most of these commands take is Python's start and imports. The forked child does what
`python -m gpulaunch` does after them, in the directory, with the environment and on the descriptors
that it was sent, and dies with whoever runs the tests.
"""

from __future__ import annotations

import gc
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from tests.helpers import goes_along

SETS_UP = ("PYTHON", "LC_", "LANG", "LD_", "TZ")
"""How variables begin that are read at a start alone: where one differs, the start is cold."""
APART = (
    "torch",
    "process",
    "explain.inject",
    "views.top",
    "notify.sender",
    "report.write",
    "mcp.server",
)
"""What the command does not import, or only where it has to."""


class Warm:
    """The process that forks, from the first call on."""

    def __init__(self) -> None:
        self._server: subprocess.Popen[bytes] | None = None
        self._address = f"\0gpulaunch-tests-{os.getpid()}"
        self.processor = 0.0
        """Seconds of processor time of what it forked and is over."""

    def suits(self, environ: Mapping[str, str]) -> bool:
        """Whether a command with this environment can be forked."""

        def of(given: Mapping[str, str]) -> dict[str, str]:
            return {name: value for name, value in given.items() if name.startswith(SETS_UP)}

        return of(environ) == of(os.environ)

    def run(
        self,
        argv: Sequence[str],
        path: Path,
        environ: Mapping[str, str],
        files: Sequence[int],
        timeout: float,
    ) -> int:
        """Run the command on these three descriptors; return its status as `subprocess` does."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asked:
            asked.settimeout(timeout)
            asked.connect(self._listening())
            with os.fdopen(os.memfd_create("request"), "wb", 0) as request:
                request.write(json.dumps([list(argv), str(path), dict(environ)]).encode())
                socket.send_fds(asked, [b"."], [request.fileno(), *files])
            pid = int(asked.recv(100))
            try:
                status, seconds = json.loads(asked.recv(100))
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                raise
        self.processor += seconds
        return int(status)

    def _listening(self) -> str:
        if self._server is None or self._server.poll() is not None:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
                listener.bind(self._address)
                listener.listen(64)
                code = f"from tests.cli.warm import serve; serve({listener.fileno()})"
                self._server = subprocess.Popen(
                    [sys.executable, "-c", code],
                    pass_fds=[listener.fileno()],
                    stdin=subprocess.DEVNULL,
                    cwd=Path(__file__).parents[2],
                    preexec_fn=goes_along(),
                )
        return self._address


WARM = Warm()


def serve(listening: int) -> NoReturn:
    """Import the command; fork one for each that asks, and answer how it ended."""
    import gpulaunch

    for module in pkgutil.walk_packages(gpulaunch.__path__, "gpulaunch."):
        if not module.name.startswith(tuple(f"gpulaunch.{name}" for name in APART)):
            import_module(module.name)
    gc.freeze()
    listener = socket.socket(fileno=listening)
    waiting: dict[int, tuple[int, socket.socket]] = {}
    while True:
        for fd in select.select([listener, *waiting], [], [])[0]:
            if fd is listener:
                asker = listener.accept()[0]
                _, fds, _, _ = socket.recv_fds(asker, 1, 4)
                bind = goes_along()
                if not (pid := os.fork()):
                    bind()
                    _become(fds)
                for sent in fds:
                    os.close(sent)
                asker.send(b"%d" % pid)
                waiting[os.pidfd_open(pid)] = (pid, asker)
            else:
                pid, asker = waiting.pop(fd)
                os.close(fd)
                _, status, used = os.wait4(pid, 0)
                spent = used.ru_utime + used.ru_stime
                asker.send(json.dumps([os.waitstatus_to_exitcode(status), spent]).encode())
                asker.close()


def _become(fds: Sequence[int]) -> NoReturn:
    """Be the command that was asked for. Never returns."""
    from gpulaunch.__main__ import main

    argv, path, environ = json.loads(os.pread(fds[0], os.fstat(fds[0]).st_size, 0))
    for number, fd in enumerate(fds[1:]):
        os.dup2(fd, number)
    os.closerange(3, 1024)
    os.chdir(path)
    os.environ.clear()
    os.environ.update(environ)
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
    sys.argv = ["gpulaunch", *argv]
    try:
        status = main()
    except SystemExit as ended:
        status = ended.code
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status or 0)  # Python's own end would take down, and so copy, every module
