"""The run's side of its report: a process of its own, waited for a while and no longer.

What it reads may hang (logs on a dead file server) and what it is given may break it; the run is
over by then, and neither its end nor its exit status hangs on this. Never imports what writes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping

from gpulaunch.helper_process import command, start
from gpulaunch.journal.rundir import RunDir

REPORT_TIMEOUT = 60.0
"""Seconds; 100,000 attempts take half of it on two cores."""
_SAID = 400
_LOOK = 0.2
"""Seconds: another thread of this process may have been given the SIGCHLD."""


class Writing:
    """The writing of a report, begun when this is made; `wait` must be called."""

    def __init__(self, run: RunDir) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._trouble = ""
        line = command("gpulaunch.report.write", os.fspath(run.path), title="report")
        try:
            self._process = start(line, stdout=subprocess.PIPE, cwd="/")
        except OSError as error:
            self._trouble = error.strerror or str(error)

    def wait(self, stopping: Mapping[signal.Signals, str], patience: float = REPORT_TIMEOUT) -> str:
        """Wait until the report is written; return why it is not, in words, or "".

        `stopping`: signals, each in words, that end the waiting and with it the report; what the
        run came to stays.
        """
        if self._process is None:
            return self._trouble
        why = _wait(self._process, stopping, patience)
        if why:
            self._process.kill()
        with self._process as process:
            assert process.stdout is not None
            said = process.stdout.read(_SAID).decode(errors="replace") if not why else ""
        if why or process.returncode == 0:
            return why
        return " ".join(said.split()) or f"its process ended with status {process.returncode}"


def _wait(
    process: subprocess.Popen[bytes], stopping: Mapping[signal.Signals, str], patience: float
) -> str:
    heard = {signal.SIGCHLD, *stopping}
    # Blocked, so that none is missed between the look and the wait, nor ends us by its own way.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, heard)
    try:
        end = time.monotonic() + patience
        while process.poll() is None:
            left = end - time.monotonic()
            if left <= 0:
                return f"it took longer than {patience:.0f} s"
            got = signal.sigtimedwait(heard, min(left, _LOOK))
            if got is not None and got.si_signo in stopping:
                return f"{stopping[signal.Signals(got.si_signo)]} came first"
        return ""
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
