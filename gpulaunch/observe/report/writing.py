"""The run's report is written by a process of its own, waited for a while and no longer.

    a niced thread: imports, reads the journal ─▶ told that the run is over ─▶ reads on, writes

What it reads may hang (logs on a dead file server) and what it is given may break it; the run is
over by then, and neither its end nor its exit status hangs on this. It gets ready beside the last
jobs, and starts of jobs come first: so a thread is niced, since a process could not take that back,
and the end of the run waits for the report. The run's side never imports what writes.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from gpulaunch.base.helper_process import command, start
from gpulaunch.journal.rundir import RunDir

if TYPE_CHECKING:
    from gpulaunch.observe.report.write import HistoryAhead


REPORT_TIMEOUT = 60.0
"""Seconds; 100,000 attempts take half of it on two cores."""
_SAID = 400
_LOOK = 0.2
"""Seconds: another thread of this process may have been given the SIGCHLD."""


class Writing:
    """The writing of a report, once `begin` is called. A context manager: at its end nothing is
    left of it.

    The process that `prepare` starts gets ready to write, and reads the journal as it grows, until
    there is a byte in a pipe; the end of the pipe, when we close it or are gone, ends the process
    without a report.
    """

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._process: subprocess.Popen[bytes] | None = None
        self._trouble = ""
        self.stopped_by: signal.Signals | None = None
        """The signal that ended the wait for the report."""

    def prepare(self) -> None:
        """Have the process ready, ahead of the end of the run; does nothing the second time."""
        if self._process is not None:
            return
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        line = command(
            "gpulaunch.observe.report.writing", os.fspath(self._run.path), title="report"
        )
        try:
            self._process = start(line, **pipes, cwd="/")
            self._trouble = ""
        except OSError as error:
            self._trouble = error.strerror or str(error)

    def begin(self) -> None:
        """Have the report written of the run as it stands from now on; see `wait`."""
        if self._process is not None and self._process.poll() is not None:
            self._close()  # it was killed while it waited: once more
        self.prepare()
        if self._process is not None and self._process.stdin is not None:
            with suppress(BrokenPipeError), self._process.stdin as told:
                told.write(b"\n")

    def _close(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        for pipe in filter(None, (process.stdin, process.stdout)):
            pipe.close()
        process.wait()

    def __enter__(self) -> Writing:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def wait(self, stopping: Mapping[signal.Signals, str], patience: float = REPORT_TIMEOUT) -> str:
        """Wait until the report is written; return why it is not, in words, or "".

        `stopping`: signals, each in words, that end the waiting and with it the report; what the
        run came to stays.
        """
        if self._process is None:
            return self._trouble
        self.stopped_by, why = _wait(self._process, stopping, patience)
        if why:
            self._process.kill()
        with self._process as process:
            assert process.stdout is not None
            said = process.stdout.read(_SAID).decode(errors="replace") if not why else ""
        self._process = None
        if why or process.returncode == 0:
            return why
        return " ".join(said.split()) or f"its process ended with status {process.returncode}"


def _wait(
    process: subprocess.Popen[bytes], stopping: Mapping[signal.Signals, str], patience: float
) -> tuple[signal.Signals | None, str]:
    """Wait until the process ends; else return why it has not, and the signal that came first."""
    heard = {signal.SIGCHLD, *stopping}
    # Blocked, so that none is missed between the look and the wait, nor ends us by its own way.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, heard)
    try:
        end = time.monotonic() + patience
        while process.poll() is None:
            left = end - time.monotonic()
            if left <= 0:
                return None, f"it took longer than {patience:.0f} s"
            got = signal.sigtimedwait(heard, min(left, _LOOK))
            if got is not None and got.si_signo in stopping:
                number = signal.Signals(got.si_signo)
                return number, f"{stopping[number]} came first"
        return None, ""
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# ── The process ───────────────────────────────────────────────────────────────────────────────────

NICER_BY = 5
"""Where others want the core as well, that leaves a quarter of it."""


def main() -> None:
    """Write the report of the run whose directory is the last argument but one.

    A byte on standard input says that the run is over, its end that there is to be no report. Says
    in a line on standard output what went wrong, if so.
    """
    # What a journal adds up to is no garbage: to look through it again and again takes a third of
    # the time.
    gc.set_threshold(100_000, 50, 100)
    ready: list[HistoryAhead] = []
    thread = threading.Thread(target=lambda: ready.append(_get_ready(sys.argv[-2])))
    thread.start()
    thread.join()
    if not os.read(0, 1):
        return  # the run came to another end, or its supervisor to its own
    from gpulaunch.observe.report.write import write_at_the_end

    said = write_at_the_end(ready[0])
    sys.stdout.write(said)
    sys.stdout.flush()
    os._exit(1 if said else 0)  # the interpreter would take down piece by piece what it built


def _get_ready(directory: str) -> HistoryAhead:
    os.nice(NICER_BY)  # of this thread alone: nice(2), "C library/kernel differences"
    from gpulaunch.observe.report.write import HistoryAhead

    ahead = HistoryAhead(RunDir(Path(directory)))
    ahead.follow(told=0)
    return ahead
