"""Writes the report at the end of a run, while the summary is printed.

A failure to write it does not change the exit status.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from gpulaunch.cli.output import say, stderr_console, typed
from gpulaunch.core.ledger import Ledger
from gpulaunch.journal.rundir import RunDir
from gpulaunch.supervisor import STOPPING


class ReportRequest(Protocol):
    @property
    def quiet(self) -> bool: ...
    @property
    def as_json(self) -> bool: ...


@contextmanager
def reported(ledger: Ledger, run: RunDir, options: ReportRequest) -> Iterator[None]:
    """Have the report written during the block; then print where it is, or why it is missing.

    A run that started no job gets no report, nor one whose directory is gone.
    """
    if not run.holds_run or not any(job.attempts for job in ledger.jobs.values()):
        yield
        return
    from gpulaunch.report.writing import Writing

    writing = Writing(run)
    try:
        yield
    finally:
        why = writing.wait(STOPPING)
        if why:
            again = f"gpulaunch report {shlex.quote(typed(run.path))}"
            say(f"the report could not be written: {why}; once more: {again}", options)
        elif not options.quiet and not options.as_json:
            from gpulaunch.views.ending import print_report

            print_report(stderr_console(), os.fspath(typed(run.report)))
