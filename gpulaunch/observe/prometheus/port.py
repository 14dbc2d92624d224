"""The supervisor's side: the port, taken before anything else is, and the process that serves it.

Never imports what serves; never waits for it.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Mapping
from contextlib import suppress

from gpulaunch.base.errors import UsageError
from gpulaunch.base.helper_process import command, start
from gpulaunch.journal.rundir import RunDir

HOST = "127.0.0.1"
BACKLOG = 16
DRAIN_TIMEOUT = 0.5
"""Seconds that the process may take to end, once it is told."""


class Exporter:
    """A port that listens from the start, so that nobody else gets it; answered after `start`.

    Port 0 is one that is free. Raises UsageError where the port cannot be had. A context manager.
    """

    def __init__(self, port: int) -> None:
        self._socket = _listen(port)
        self._process: subprocess.Popen[bytes] | None = None
        number = self._socket.getsockname()[1]
        self.address = f"http://{HOST}:{number}/metrics"

    def start(self, run: RunDir, earlier: Mapping[str, float] | None = None) -> None:
        """Have this run's metrics served. Its journal must exist. Raises OSError.

        `earlier`: how long jobs took in earlier runs, in seconds by name: what the estimate begins
        with.
        """
        with self._socket as listener, os.fdopen(os.memfd_create("earlier"), "w") as file:
            json.dump(dict(earlier or {}), file)
            file.flush()
            file.seek(0)
            passed = [listener.fileno(), file.fileno()]
            arguments = [*map(str, passed), os.fspath(run.path)]
            self._process = start(
                command("gpulaunch.observe.prometheus.serve", *arguments, title="metrics"),
                stdin=subprocess.PIPE,  # its end is ours, a SIGKILL's too
                pass_fds=passed,
                cwd="/",
            )

    def close(self) -> None:
        """Serve no more. An answer under way may get out; the process keeps nothing else."""
        self._socket.close()
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None
            process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                process.wait(DRAIN_TIMEOUT)
            process.kill()
            process.wait()

    def __enter__(self) -> Exporter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _listen(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        # A run that goes on finds its port again, though the last one's connections linger.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise UsageError(
            f"--metrics-port {port}: {HOST}:{port} cannot be had: {error.strerror};"
            " name another port, or 0 for one that is free"
        ) from None
    return listener
