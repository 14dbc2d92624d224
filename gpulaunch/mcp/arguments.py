"""What each tool takes, and what a tool works with: its caller, its notes, the size of its answer.

Arguments are types, from which the schemas are made and by which the arguments are checked. A
member that a tool does not have is refused, with the nearest that it has. An answer is bounded:
whoever reads it pays for each word.
"""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from gpulaunch.base.errors import UsageError
from gpulaunch.base.files import read_bytes
from gpulaunch.base.files import replace as replace_file
from gpulaunch.base.text import clip
from gpulaunch.core.model import JobState
from gpulaunch.journal.find import working_directory
from gpulaunch.observe.present.words import visible_lines
from gpulaunch.run.options import Observer

A = TypeVar("A", bound=Struct)

MAX_TEXT = 1 << 20
"""Characters of a job file that is handed over as text."""
MAX_ROWS = 500
"""Jobs, at most, in one answer."""
MAX_LINES = 1000
"""Lines, at most, of one log."""
MAX_WAIT = 55.0
"""Seconds that `status` may wait: clients give up on an answer after a minute or more."""

PathText = Annotated[str, Meta(min_length=1, max_length=4096)]
JobFile = Annotated[
    PathText | None,
    Meta(description="Path of a job file (YAML), or of a list: a command a line. Relative to cwd."),
]
JobText = Annotated[
    Annotated[str, Meta(max_length=MAX_TEXT)] | None,
    Meta(description="A job file's YAML itself, instead of job_file."),
]
Cwd = Annotated[
    PathText | None, Meta(description="Directory; the server's own where it is left out.")
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
    PathText | None,
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
        Annotated[list[PathText], Meta(max_length=100)],
        Meta(description="Runs that stack in one table; the newest one."),
    ] = []
    files: Annotated[
        Annotated[list[PathText], Meta(max_length=20)],
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


# ── The size of an answer ─────────────────────────────────────────────────────────────────────────

T = TypeVar("T")

MAX_NOTES = 40
"""Lines, at most, of an answer's notes."""
MAX_NOTE = 2000
"""Characters, at most, of one of them."""
MAX_MEMBER = 10_000
"""Characters, at most, of any other text in an answer."""


def bounded(lines: Iterable[str]) -> list[str]:
    """Return the first lines, clipped, and where there are more a line that says how many."""
    all_lines = list(lines)
    shown = [clip(line, MAX_NOTE) for line in all_lines[:MAX_NOTES]]
    if more := len(all_lines) - len(shown):
        shown.append(f"... and {more:,} more lines")
    return shown


def answerable(answer: T, longest: int) -> T:
    """Return an answer's JSON, each text in it cut to so many characters; `…` marks a cut.

    What of a path is no UTF-8 becomes `?`: the protocol has no way to tell it.
    """
    told: object = answer
    if isinstance(answer, str):
        told = clip(answer, longest).encode(errors="replace").decode()
    elif isinstance(answer, list):
        told = [answerable(one, longest) for one in answer]
    elif isinstance(answer, dict):
        told = {
            answerable(key, longest): answerable(value, longest) for key, value in answer.items()
        }
    return told  # type: ignore[return-value]


# ── The job file ──────────────────────────────────────────────────────────────────────────────────


def job_file_of(
    job_file: str | None, text: str | None, cwd: str | None
) -> tuple[Path, bytes | None]:
    """Return the job file's absolute path, and what it holds where it is given as a text.

    Raises UsageError.
    """
    folder = directory_of(cwd)
    if (job_file is None) == (text is None):
        both = "both were given" if text is not None else "neither was given"
        raise UsageError(f"expected job_file (a path) or text (the YAML itself): {both}")
    if job_file is not None:
        return folder / job_file, None
    data = (text or "").encode()
    return folder / f"jobs-{hashlib.sha256(data).hexdigest()[:12]}.yaml", data


def directory_of(cwd: str | None) -> Path:
    """Return a call's directory, the server's own where it names none. Raises UsageError."""
    folder = working_directory() if cwd is None else working_directory() / cwd
    if not os.path.isdir(folder):
        raise UsageError(f"cwd: there is no directory {folder}")
    return folder


def keep_text(path: Path, data: bytes) -> None:
    """Write a text as the file that it is named by; one that is there stays as it is.

    A text becomes a file because its run is resumed, and retried, from there. It is named by what
    it holds: the same text is the same file, and its last run is known like that of any file.
    Raises UsageError where that holds something else, or nothing can be written.
    """
    try:
        if not os.path.lexists(path):
            replace_file(path, data, mode=0o666)
        elif read_bytes(path) != data:
            raise UsageError(
                f"{path} was changed since it was written: give it as job_file, or another text"
            )
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None


# ── The caller ────────────────────────────────────────────────────────────────────────────────────


class Caller:
    """A tool's caller, as the thread that works for it knows it; close it.

    It is told how far the tool has come, and may be gone before there is an answer: `fileno` is
    readable once nobody waits for the answer any more.
    """

    def __init__(self, line: socket.socket, progress: Callable[[int, int], object]) -> None:
        self._line = line
        self.progress = progress

    @property
    def gone(self) -> bool:
        """True once nobody waits for the answer: the other end of the line was closed."""
        try:
            return not self._line.recv(1, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False

    def fileno(self) -> int:
        return self._line.fileno()

    def close(self) -> None:
        self._line.close()

    def __enter__(self) -> Caller:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# ── Notes ─────────────────────────────────────────────────────────────────────────────────────────


class NoteTaker(Observer):
    """Takes the notes and warnings of a call for its answer, and prints nothing."""

    def __init__(self) -> None:
        self.taken: list[str] = []

    def note(self, text: str, urgent: bool = False) -> None:
        self.taken.append(text)

    def warn(self, text: str) -> None:
        self.taken.append(f"warning: {text}")

    @property
    def lines(self) -> list[str]:
        """The notes, of each its lines, and where there are too many how many more there are."""
        return bounded(line for text in self.taken for line in visible_lines(text).split("\n"))
