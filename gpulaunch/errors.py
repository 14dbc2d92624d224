"""What can go wrong by the user's or the machine's doing, and the exit status each kind leads to.

Everything here is expected: the command line prints `str(error)` and exits with `status`.
Anything else that is raised is a bug, and shows its traceback.
"""

from __future__ import annotations

from collections.abc import Sequence

OK = 0
SOME_JOB_FAILED = 1
USAGE = 2
NO_CARDS = 3
NOT_RECORDED = 4
UNFINISHED = 5
EXEC_WAIT_RAN_OUT = 124
EXEC_OWN_FAILURE = 125
EXEC_CANNOT_EXECUTE = 126
EXEC_NOT_FOUND = 127


class GpulaunchError(Exception):
    """An expected failure; its text is complete: what was found, where, and what to do."""

    status = SOME_JOB_FAILED


class UsageError(GpulaunchError):
    """The command line, a run's name or its directory is wrong; nothing was started."""

    status = USAGE


class JobFileError(UsageError):
    """The job file is wrong; `mistakes` has one line (or one block with the line shown) each."""

    def __init__(self, mistakes: Sequence[str]) -> None:
        super().__init__("\n".join(mistakes))
        self.mistakes = tuple(mistakes)


class NoCardsError(GpulaunchError):
    """The pool can never give the cards, or `--wait` ran out; nothing was started."""

    status = NO_CARDS


class NotRecordedError(GpulaunchError):
    """The run could not be recorded (disk full, directory gone) and was stopped."""

    status = NOT_RECORDED


class UnfinishedRunError(GpulaunchError):
    """The newest run of this file is alive, stopped or interrupted; nothing was started."""

    status = UNFINISHED
