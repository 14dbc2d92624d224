"""The tools that start jobs or end them: run, add, retry and cancel.

A run that is started here outlives the server: the command line's own `--detach` starts it, a
process each.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, Any

from msgspec import Struct

from gpulaunch.base.errors import UNFINISHED, JobFileError, UsageError
from gpulaunch.base.schemas import SCHEMA
from gpulaunch.journal.choices import Choices
from gpulaunch.journal.liveness import refuse_elsewhere, state_of
from gpulaunch.journal.read import replay
from gpulaunch.mcp.arguments import (
    AddArguments,
    Caller,
    CancelArguments,
    NoteTaker,
    RetryArguments,
    RunArguments,
    bounded,
    directory_of,
    job_file_of,
    keep_text,
)
from gpulaunch.run import edit, lookup, requests, resumption
from gpulaunch.run.check import check
from gpulaunch.run.edit import Added
from gpulaunch.run.options import NOBODY, RunOptions
from gpulaunch.run.user_queue import own_command

if TYPE_CHECKING:
    from gpulaunch.base.documents import (
        AddedPage,
        CancelledDocument,
        RetriedDocument,
        StartedDocument,
    )


MAX_TOLD = 1 << 20
"""Bytes that are read of what a start printed."""
_ANOTHER = "here: go_on: true goes on with it, new: true starts afresh"


class Started(Struct, frozen=True):
    """What a detached start printed: on standard output, and in words on standard error."""

    printed: str
    notes: Sequence[str]


def launch(words: Sequence[str], cwd: str | None = None) -> Started:
    """Carry out `gpulaunch WORDS --detach` and return what it said, once the run is recorded.

    A run is begun by forking, which a process with threads may not do; so it begins in a new one,
    whose command line is then the one in the run's manifest and in `ps`. That process is in a
    session of its own: whoever ends the server and its group neither ends the run nor cuts its
    start short. The standard streams are files, not pipes: the server's end breaks none of them.

    Raises UsageError with its words where it failed. `cwd`: its directory; None: the server's.
    """
    argv = [*own_command(), words[0], "--detach", *words[1:]]
    with TemporaryFile() as out, TemporaryFile() as err:
        try:
            process = subprocess.Popen(
                argv,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        except OSError as error:
            raise UsageError(f"{error.filename or argv[0]}: {error.strerror}") from None
        status = process.wait()
        printed, said = _text(out).strip(), _text(err)
    lines = [line.removeprefix("gpulaunch: ") for line in said.splitlines()]
    if status:
        told = "\n".join(lines) or f"gpulaunch {words[0]} failed with status {status}"
        raise UsageError(f"{told}\n{_ANOTHER}" if status == UNFINISHED else told)
    return Started(printed, lines)


def _text(file: IO[bytes]) -> str:
    # Not `seek`: whoever still writes there would go on at another place.
    return os.pread(file.fileno(), MAX_TOLD, 0).decode(errors="surrogateescape")


# ── The tools ─────────────────────────────────────────────────────────────────────────────────────

MAX_NAMES = 100
"""Names of jobs, at most, in one answer."""
OF_A_COMMAND = (
    "name",
    "gpus",
    "gpu_memory",
    "share",
    "needs",
    "after",
    "priority",
    "timeout",
    "retries",
    "env",
    "cwd",
)
"""Fields that go with a command alone: a file says them of each of its jobs."""


def run(asked: RunArguments, _: NoteTaker, __: Caller) -> StartedDocument:
    """Start a run that goes on by itself; return it once it is recorded.

    Nothing is written, nor started, for a job file with a mistake.
    """
    path, text = job_file_of(asked.job_file, asked.text, asked.cwd)
    if text is not None:
        options = RunOptions(Choices(gpus=asked.gpus, simulate=asked.simulate), asked.engine)
        check(path, options, NOBODY, text=text)
        keep_text(path, text)
    words = ["run", str(path)]
    words += [f"--gpus={asked.gpus}"] * (asked.gpus is not None)
    words += [f"--simulate={asked.simulate}"] * (asked.simulate is not None)
    words += [f"--engine={asked.engine}"] * (asked.engine is not None)
    words += [f"--only={pattern}" for pattern in asked.only]
    words += ["--new"] * asked.new + ["--continue"] * asked.go_on
    started = launch(words, str(directory_of(asked.cwd)))
    return {
        "schema": SCHEMA,
        "run": started.printed,
        "job_file": str(path),
        "notes": bounded(started.notes),
    }


def add(asked: AddArguments, notes: NoteTaker, _: Caller) -> AddedPage:
    """Add a command, or the jobs of a file or a text, to a live run; return their names."""
    given = [one for one in (asked.command, asked.job_file, asked.text) if one is not None]
    if len(given) != 1:
        raise UsageError(f"expected one of command, job_file and text, found {len(given)} of them")
    if asked.command is not None:
        added = _add_command(asked, asked.command, notes)
    else:
        fields = [name for name in _fields(asked) if name != "cwd"]
        if fields:
            raise UsageError(f"{fields[0]} is for a command: a file says that of each of its jobs")
        path, text = job_file_of(asked.job_file, asked.text, asked.cwd)
        if text is None:
            added = edit.add_file(path, asked.run, notes, directory_of(asked.cwd))
        else:
            added = edit.add(text.decode(), "text", path.parent, asked.run, notes)
    return {
        "schema": SCHEMA,
        "run": str(added.run.path),
        "names": list(added.names[:MAX_NAMES]),
        "total": len(added.names),
        "notes": notes.lines,
    }


def retry(asked: RetryArguments, notes: NoteTaker, _: Caller) -> RetriedDocument:
    """Run again what failed, or the jobs named: in the live run, or by going on with it."""
    one = lookup.own_directory(asked.run, notes, asked.jobs)
    refuse_elsewhere(one)
    names = tuple(lookup.jobs_of(replay(one.events), asked.jobs)) if asked.jobs else None
    alive = state_of(one) == "running"
    if alive:
        resumption.retry_alive(one, names, observer=notes)
    else:
        started = launch(["retry", f"--run={one.path}", "--", *(names or ())])
        notes.taken += started.notes
    return {"schema": SCHEMA, "run": str(one.path), "was_alive": alive, "notes": notes.lines}


def cancel(asked: CancelArguments, notes: NoteTaker, _: Caller) -> CancelledDocument:
    """Have a live run end the jobs that are named, or with `all` every one, and so itself."""
    if bool(asked.jobs) == asked.all:
        raise UsageError("name the jobs to cancel, or say all: true for the whole run")
    told = requests.cancel(asked.run, asked.jobs or None)
    names = told.names
    return {
        "schema": SCHEMA,
        "run": str(told.run.path),
        "names": list((names or ())[:MAX_NAMES]),
        "total": None if names is None else len(names),
        "notes": notes.lines,
    }


def _add_command(asked: AddArguments, command: str | Sequence[str], notes: NoteTaker) -> Added:
    words = [command] if isinstance(command, str) else command
    if not any(words):
        raise UsageError("command: it is empty")
    try:
        return edit.add_command(words, _fields(asked), asked.run, notes)
    except JobFileError as error:
        told = dict.fromkeys(f"{_argument(one.field)}: {one.message}" for one in error.found)
        raise UsageError("\n".join((*told, "nothing was added"))) from None


def _fields(asked: AddArguments) -> Mapping[str, Any]:
    """Return the fields of a command's job that were given, as a job file has them."""
    given = {name: getattr(asked, name) for name in OF_A_COMMAND}
    if asked.cwd is not None:
        given["cwd"] = str(directory_of(asked.cwd))
    return {
        name: value if isinstance(value, list | dict) else str(value)
        for name, value in given.items()
        if value is not None and value not in ([], {})
    }


def _argument(field: str) -> str:
    """Return the argument that a field of the job came from: `timeout` for jobs[0].timeout."""
    name = field.rpartition(".")[2].partition("[")[0]
    return {"run": "command", "": "add"}.get(name, name)
