"""What each tool takes: types, from which the schemas are made and by which arguments are checked.

A member that a tool does not have is refused, with the nearest that it has.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from gpulaunch.core.model import JobState
from gpulaunch.errors import UsageError

A = TypeVar("A", bound=Struct)

MAX_TEXT = 1 << 20
"""Characters of a job file that is handed over as text."""
MAX_ROWS = 500
"""Jobs, at most, in one answer."""
MAX_LINES = 1000
"""Lines, at most, of one log."""
MAX_WAIT = 55.0
"""Seconds that `status` may wait: clients give up on an answer after a minute or more."""

Path = Annotated[str, Meta(min_length=1, max_length=4096)]
JobFile = Annotated[
    Path | None,
    Meta(description="Path of a job file (YAML), or of a list: a command a line. Relative to cwd."),
]
JobText = Annotated[
    Annotated[str, Meta(max_length=MAX_TEXT)] | None,
    Meta(description="A job file's YAML itself, instead of job_file."),
]
Cwd = Annotated[
    Path | None, Meta(description="Directory; the server's own where it is left out.")
]  # fmt: skip
Gpus = Annotated[
    str | None,
    Meta(description='Which cards: "all"; how many ("2"); indices ("0,2", one: "2,"); UUIDs.'),
]
Simulate = Annotated[
    Annotated[int, Meta(ge=1, le=64)] | None,
    Meta(description="Pretend so many cards: tries a list on any machine."),
]
Engine = Annotated[
    Literal["local", "slurm"] | None, Meta(description="This machine's cards, or a Slurm cluster.")
]
Run = Annotated[
    Path | None,
    Meta(description="Run directory, name or id, or a job file (its newest run)."),
]
Jobs = Annotated[
    Annotated[list[str], Meta(max_length=1000)], Meta(description="Names or patterns (fold-*).")
]
Rows = Annotated[int, Meta(ge=1, le=MAX_ROWS, description="So many jobs in the answer, at most.")]


class ToolArguments(Struct, frozen=True, forbid_unknown_fields=True):
    """What a tool is called with."""


class CheckArguments(ToolArguments, frozen=True):
    """A job file, and where it would run."""

    job_file: JobFile = None
    text: JobText = None
    cwd: Cwd = None
    gpus: Gpus = None
    simulate: Simulate = None
    engine: Engine = None
    limit: Rows = 10


class RunArguments(ToolArguments, frozen=True):
    """A job file, and how it is run."""

    job_file: JobFile = None
    text: JobText = None
    cwd: Annotated[Cwd, Meta(description="Directory in which the run is begun and kept.")] = None
    gpus: Gpus = None
    simulate: Simulate = None
    engine: Engine = None
    only: Annotated[Jobs, Meta(description="Only these jobs, and what they need.")] = []
    new: Annotated[bool, Meta(description="Start afresh, whatever became of the last run.")] = False
    go_on: Annotated[
        bool, Meta(description="Go on with the file's last run; start one if there is none.")
    ] = False


class AddArguments(ToolArguments, frozen=True):
    """Jobs for a live run: a command with its fields, a job file, or its text."""

    run: Annotated[Run, Meta(description="The live run; the only one here.")] = None
    command: Annotated[
        str | list[str] | None,
        Meta(description="A shell command, or a program and its arguments."),
    ] = None
    job_file: JobFile = None
    text: JobText = None
    cwd: Annotated[Cwd, Meta(description="Directory of a command, or of a list's.")] = None
    name: Annotated[str | None, Meta(description="The job's name.")] = None
    gpus: Annotated[
        Annotated[int, Meta(ge=0)] | None, Meta(description="Cards at once (1).")
    ] = None  # fmt: skip
    gpu_memory: Annotated[
        str | None, Meta(description="Only a card with so much memory free: 16GB.")
    ] = None
    share: Annotated[bool | None, Meta(description="Share the card with others that do.")] = None
    needs: Annotated[Jobs, Meta(description="Jobs that have to succeed first.")] = []
    after: Annotated[Jobs, Meta(description="Jobs that have to end first.")] = []
    priority: Annotated[int | None, Meta(description="Higher is earlier (0).")] = None
    timeout: Annotated[str | None, Meta(description="Longest run: 2h.")] = None
    retries: Annotated[
        Annotated[int, Meta(ge=0)] | None, Meta(description="Tries after the first (0).")
    ] = None
    env: Annotated[dict[str, str], Meta(description="Variables, which are kept.")] = {}


class StatusArguments(ToolArguments, frozen=True):
    """A run, and which of its jobs."""

    run: Run = None
    jobs: Annotated[Jobs, Meta(description="Only these: names or patterns.")] = []
    states: Annotated[list[JobState], Meta(description="Only jobs in one of these states.")] = []
    limit: Rows = 50
    wait: Annotated[
        float,
        Meta(ge=0, le=MAX_WAIT, description="Answer once the run is over, or after so many s."),
    ] = 0


class WhyArguments(ToolArguments, frozen=True):
    """A job of a run."""

    job: Annotated[str, Meta(min_length=1, description="Name, or a pattern that fits one job.")]
    run: Run = None


class LogsArguments(ToolArguments, frozen=True):
    """The logs of a run's jobs."""

    run: Run = None
    jobs: Annotated[Jobs, Meta(description="Names or patterns; every job that has a log.")] = []
    failed: Annotated[bool, Meta(description="Of these, those that failed.")] = False
    attempt: Annotated[
        Annotated[int, Meta(ge=1)] | None, Meta(description="That attempt; the newest.")
    ] = None
    lines: Annotated[
        int, Meta(ge=1, le=MAX_LINES, description="The last lines of each log, at most.")
    ] = 50


class ResultsArguments(ToolArguments, frozen=True):
    """Runs, and what of their jobs."""

    runs: Annotated[
        Annotated[list[Path], Meta(max_length=100)],
        Meta(description="Runs that stack in one table; the newest one."),
    ] = []
    files: Annotated[
        Annotated[list[Path], Meta(max_length=20)],
        Meta(description="Files in each job's out directory to read: metrics.json, scores.csv."),
    ] = []
    jobs: Annotated[Jobs, Meta(description="Only these: names or patterns.")] = []
    states: Annotated[list[JobState], Meta(description="Only jobs in one of these states.")] = []
    sort: Annotated[
        str | None, Meta(description="Column to sort by, rising; -COLUMN: falling.")
    ] = None  # fmt: skip
    limit: Rows = 50


class RetryArguments(ToolArguments, frozen=True):
    """Jobs to run again."""

    run: Run = None
    jobs: Annotated[Jobs, Meta(description="Names or patterns; all that failed.")] = []


class CancelArguments(ToolArguments, frozen=True):
    """Jobs to stop."""

    run: Annotated[Run, Meta(description="The live run; the only one here.")] = None
    jobs: Jobs = []
    all: Annotated[bool, Meta(description="Every job, and so the run.")] = False


class GpusArguments(ToolArguments, frozen=True):
    """Nothing: it tells all cards."""


def input_schema(kind: type[Struct]) -> dict[str, Any]:
    """Return the JSON Schema of a tool's arguments."""
    schema = msgspec.json.schema(kind)
    found: dict[str, Any] = schema["$defs"][kind.__name__]
    del found["title"]
    return found


def understood(kind: type[A], given: dict[str, Any]) -> A:
    """Return a tool's arguments. Raises UsageError with what is wrong, and what was expected."""
    known = kind.__struct_fields__
    for name in given:
        if name not in known:
            near = get_close_matches(name, known, 1)
            instead = f"did you mean {near[0]}?" if near else f"it has {', '.join(known) or 'none'}"
            raise UsageError(f"there is no argument {name!r}: {instead}")
    try:
        arguments = msgspec.convert(given, kind)
        for name, value in given.items():
            if what := _why_no_text(value):
                raise UsageError(f"{name}: there is {what} in it")
        return arguments
    except UnicodeEncodeError:
        raise UsageError(f"there is {_HALF} in an argument") from None
    except msgspec.ValidationError as error:
        text, _, place = str(error).partition(" - at ")
        where = place.strip("`").removeprefix("$.")
        raise UsageError(f"{where}: {text}" if where else text) from None


_HALF = "half a surrogate pair, which is no text,"


def _why_no_text(value: object) -> str:
    """Return what is in a text, or in one within, that no path or command has; empty for none."""
    if isinstance(value, dict):
        value = [each for pair in value.items() for each in pair]
    if isinstance(value, list):
        return next(filter(None, map(_why_no_text, value)), "")
    if not isinstance(value, str):
        return ""
    if "\0" in value:
        return "a NUL character"
    return (
        "" if value.isascii() or not any("\ud800" <= char <= "\udfff" for char in value) else _HALF
    )
