"""The job list that a command is given: a file, or, for `-`, what standard input has."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpulaunch.base.errors import UsageError
from gpulaunch.jobfile.file_keys import Surroundings
from gpulaunch.jobfile.load import load, load_text
from gpulaunch.jobfile.plan import Plan
from gpulaunch.jobfile.source import MAX_BYTES
from gpulaunch.journal.find import working_directory

if TYPE_CHECKING:
    OfFloat = click.ParamType[float]
    OfStr = click.ParamType[str]
else:
    OfFloat = OfStr = click.ParamType  # click before 8.4 has one for all


STDIN = "stdin"
"""What a list from standard input is called, and so the run of one without a name."""


_PIECE = 1 << 20


def is_stdin(jobs: Path) -> bool:
    """Tell whether a list is to come from standard input."""
    return str(jobs) == "-"


def file_of(jobs: Path) -> Path | None:
    """Return the list's file; None for one from standard input."""
    return None if is_stdin(jobs) else jobs


def plan_of(jobs: Path, around: Surroundings) -> Plan:
    """Return the plan of a job file, or of a list of commands. Raises as `load` does."""
    if is_stdin(jobs):
        return load_text(read_stdin(), around, name=STDIN, base=working_directory())
    return load(jobs, around)


def read_stdin() -> bytes:
    """Return what standard input has, to its end. Raises UsageError for a terminal."""
    if sys.stdin.isatty():
        raise UsageError(
            "-: standard input is a terminal; pipe a list into it (./make-list | gpulaunch run -),"
            " or name a file"
        )
    data = bytearray()
    try:
        while piece := os.read(sys.stdin.fileno(), _PIECE):
            data += piece
            if len(data) > MAX_BYTES:
                raise UsageError(f"{STDIN}: more than {MAX_BYTES:,} bytes, which a list may have")
    except OSError as error:
        raise UsageError(f"{STDIN} cannot be read: {error.strerror}") from None
    return bytes(data)
