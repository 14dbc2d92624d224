"""Expected errors, by the user's or the machine's doing, each with its exit status.

Everything here is expected: the command line prints `str(error)` and exits with `status`.
Anything else that is raised is told by `gpulaunch.__main__`, which writes its traceback to a file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from msgspec import Struct

OK = 0
SOME_JOB_FAILED = 1
USAGE = 2
NO_CARDS = 3
NOT_RECORDED = 4
UNFINISHED = 5
OWN_FAULT = 70  # EX_SOFTWARE of sysexits.h
EXEC_WAIT_RAN_OUT = 124
EXEC_OWN_FAILURE = 125
EXEC_CANNOT_EXECUTE = 126
EXEC_NOT_FOUND = 127

OF_A_RUN: Mapping[int, str] = MappingProxyType(
    {
        OK: "every job succeeded",
        SOME_JOB_FAILED: "some job did not",
        USAGE: "the command line or the job file is wrong: nothing started",
        NO_CARDS: "the cards (or Slurm) cannot be had, or --wait ran out: nothing started",
        NOT_RECORDED: "not recorded (disk full for a minute, directory gone), and stopped",
        UNFINISHED: "the last run of this file is unfinished: gpulaunch resume it, or --new",
        OWN_FAULT: "a fault of gpulaunch, too little memory, or no /proc: a line says which",
        130: "stopped by Ctrl-C",
        143: "stopped by SIGTERM",
        129: "stopped by SIGHUP",
    }
)
"""What the exit statuses of `run`, `map`, `resume` and `retry` mean."""

OF_EXEC: Mapping[int, str] = MappingProxyType(
    {
        EXEC_WAIT_RAN_OUT: "the wait for a card ran out",
        EXEC_OWN_FAILURE: "gpulaunch's own failure",
        EXEC_CANNOT_EXECUTE: "CMD cannot be executed",
        EXEC_NOT_FOUND: "CMD was not found",
    }
)
"""What the exit statuses of `exec` mean that are not its command's own."""

OF_HOLD: Mapping[int, str] = MappingProxyType(
    {
        **OF_EXEC,
        143: "the time was over: SIGTERM ended CMD (a shell: 129; after --grace: 137)",
        130: "without CMD: ended by Ctrl-C",
    }
)
"""What the exit statuses of `hold` mean that are not its command's own."""

NOWHERE = "the working directory was deleted: cd to one that is there"


class GpulaunchError(Exception):
    """An expected failure; its text is complete: what was found, where, and what to do."""

    status = SOME_JOB_FAILED


class UsageError(GpulaunchError):
    """The command line, a run's name or its directory is wrong; nothing was started."""

    status = USAGE


class Mistake(Struct, frozen=True):
    """One mistake of a job file.

    `text` is the block that people read: place, message, the line itself. `line` and `column` count
    from 1, and are None for a mistake without a place. `field` is spelt `jobs[3].gpus`, empty for
    the file itself.
    """

    text: str
    message: str
    file: str = ""
    line: int | None = None
    column: int | None = None
    field: str = ""

    def plain(self) -> dict[str, Any]:
        """Return the mistake as plain values: file, line, column, field, message."""
        names = ("file", "line", "column", "field", "message")
        return {name: getattr(self, name) for name in names}


class JobFileError(UsageError):
    """The job file is wrong. `found` are its mistakes, `mistakes` the text of each, for people.

    A mistake without a place may be given as its text.
    """

    def __init__(self, mistakes: Sequence[Mistake | str]) -> None:
        self.found = tuple(m if isinstance(m, Mistake) else Mistake(m, m) for m in mistakes)
        self.mistakes = tuple(mistake.text for mistake in self.found)
        super().__init__("\n".join(self.mistakes))


class NothingChangedError(JobFileError):
    """The list that a live run was given is wrong: the run goes on as it was."""

    def __init__(self, mistakes: Sequence[Mistake | str]) -> None:
        super().__init__(mistakes)
        self.args = ("\n".join((*self.mistakes, "nothing was changed: the run goes on as it was")),)


class ConfigurationError(UsageError):
    """A configuration file is wrong; nothing was started. `found` are the mistakes of both."""

    what = "the configuration"

    def __init__(self, found: Sequence[Mistake]) -> None:
        self.found = tuple(found)
        super().__init__("\n".join(mistake.text for mistake in found))


class NoCardsError(GpulaunchError):
    """The pool can never give the cards, or `--wait` ran out; nothing was started."""

    status = NO_CARDS


class NotRecordedError(GpulaunchError):
    """The run could not be recorded (disk full, directory gone) and was stopped."""

    status = NOT_RECORDED


class UnfinishedRunError(GpulaunchError):
    """The newest run of this file is alive, stopped or interrupted; nothing was started."""

    status = UNFINISHED
