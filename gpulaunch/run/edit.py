"""Changes a live run from another terminal: reload, add, set, finish, cancel, drain; waits for it.

The run itself reads, checks and records; the answer comes once that is done.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from msgspec import Struct

from gpulaunch.base.errors import OK, SOME_JOB_FAILED, UsageError
from gpulaunch.base.text import listing
from gpulaunch.core.events import Finish
from gpulaunch.core.ledger import JobRecord, Ledger
from gpulaunch.core.model import exit_code_of, signal_of
from gpulaunch.engines.environment import as_given
from gpulaunch.jobfile.command_list import is_list, stem_of
from gpulaunch.jobfile.settings import pair_of
from gpulaunch.jobfile.source import read_bytes
from gpulaunch.journal.find import working_directory
from gpulaunch.journal.liveness import own_id
from gpulaunch.journal.ownership import require_own
from gpulaunch.journal.read import Follower, additions_in
from gpulaunch.journal.rundir import RunDir, queue_dirs
from gpulaunch.run.control_client import call
from gpulaunch.run.control_protocol import (
    Add,
    Changed,
    GivenNames,
    NoAnswerError,
    Reload,
    SetFields,
)
from gpulaunch.run.lookup import (
    NoneAliveError,
    alive,
    alive_dir,
    jobs_of,
    living_queue,
    pulse,
)
from gpulaunch.run.options import NOBODY, Observer

READING = 600.0
"""Seconds for a live run to read a list of jobs: 100,000 take ten."""


class Added(Struct, frozen=True):
    """Jobs that were added to a run."""

    run: RunDir
    run_id: str
    names: tuple[str, ...]


def reload(
    run: str | os.PathLike[str] | None = None, observer: Observer = NOBODY, *, dry_run: bool = False
) -> tuple[RunDir, Changed]:
    """Have a live run read its job file anew; return the run and what that changed.

    `run`: None is the only live run here. `dry_run`: nothing is changed. Raises UsageError, or
    JobFileError with every mistake of the file: then nothing is changed.
    """
    one = alive_dir(run, observer)
    return one, call(own_id(one), Reload(dry_run), READING, Changed)


def add_command(
    command: Sequence[str],
    fields: Mapping[str, Any],
    run: str | os.PathLike[str] | None = None,
    observer: Observer = NOBODY,
) -> Added:
    """Add one command to a live run. Raises as `add` does.

    One word is a shell command, several are executed as they are. `fields` are those of the job, as
    a job file has them; without a `name`, the run gives one.
    """
    stem = stem_of(command)
    job = {**fields, "run": command[0] if len(command) == 1 else list(command)}
    text = json.dumps({"name": stem, "jobs": [job]})
    return add(text, "add", working_directory(), run, observer, "" if "name" in fields else stem)


def add_file(
    file: Path,
    run: str | os.PathLike[str] | None = None,
    observer: Observer = NOBODY,
    cwd: Path | None = None,
) -> Added:
    """Add a file of jobs to a live run. Raises as `add` does.

    `cwd`: where the commands of a list start, the working directory where it is None.
    """
    data = read_bytes(file, "a job file (YAML text), or a list of commands")
    text = data.decode(errors="surrogateescape")
    listed = is_list(str(file), data)
    base = (cwd or working_directory()) if listed else file.absolute().parent
    return add(text, str(file), base, run, observer)


def add(
    text: str,
    label: str,
    base: Path,
    run: str | os.PathLike[str] | None = None,
    observer: Observer = NOBODY,
    stem: str = "",
) -> Added:
    """Add the jobs of a job file's text to a live run, with this process's environment.

    `label` and `base` as for `load_text`; `stem` as in Add. Raises JobFileError with every mistake,
    UsageError where nothing was added. A run that dies before it answers may have added them: then
    this is found out, and they are returned. If a queue goes over to its next directory meanwhile,
    they are added there.
    """
    one = _where(run, observer)
    asking = Add(uuid4().hex, text, label, str(base), as_given(os.environ), stem)
    while True:
        require_own(one)
        id = own_id(one)
        try:
            return Added(one, id, call(id, asking, READING, GivenNames).names)
        except NoAnswerError:
            parts = additions_in(one.events)
            kept = next((each for each in parts if each.name == asking.addition), None)
            if kept is not None:
                text = f"added, but the run ended at once: gpulaunch resume {one.path}"
                observer.note(text, urgent=True)
                return Added(one, id, tuple(job.name for job in kept.jobs))
            later = living_queue() if one in queue_dirs() else None
            if later in (None, one):
                raise
            one = later


def _where(run: str | os.PathLike[str] | None, observer: Observer) -> RunDir:
    """Return the live run to add to: the one meant, or the only one here, or this user's queue."""
    try:
        return alive_dir(run, observer)
    except NoneAliveError as error:
        queue = living_queue()
        if queue is None:
            start = "gpulaunch queue start --detach"
            raise UsageError(f"{error}; nor is your queue, which {start} begins") from None
        observer.note(f"added to your queue: {queue.path}")
        return queue


def status_of(added: Added) -> int:
    """Wait until the jobs have ended; return the exit status of the one, or 1 if any failed.

    A job that was killed has 128 and the signal's number. One whose run ended first has 1.
    """
    ledger = Ledger()
    with Follower(added.run.events) as follower:
        while True:
            supervisor = pulse(added.run, added.run_id)
            follower.fold(ledger)
            if supervisor is None or all(ledger.jobs[name].settled for name in added.names):
                break
            with supervisor:
                follower.wait(also=[supervisor])
    statuses = [_status(ledger.jobs[name]) for name in added.names]
    return statuses[0] if len(statuses) == 1 else int(any(statuses))


def _status(job: JobRecord) -> int:
    if job.state == "succeeded":
        return OK
    end = job.attempts[-1].end if job.attempts else None
    if job.settled is None or end is None:
        return SOME_JOB_FAILED
    code, signal = exit_code_of(end.outcome), signal_of(end.outcome)
    return 128 + signal if signal else code or SOME_JOB_FAILED


def set_fields(
    words: Sequence[str],
    run: str | os.PathLike[str] | None = None,
    observer: Observer = NOBODY,
) -> tuple[RunDir, Changed]:
    """Set fields of jobs that wait in a live run; return the run and what that changed.

    `words`: names or patterns of jobs, then `field=value`. Raises UsageError.
    """
    fields = dict(pair_of(word) for word in words if "=" in word)
    patterns = [word for word in words if "=" not in word]
    if not patterns or not fields:
        raise UsageError("set takes jobs and fields: gpulaunch set 'fold-x*' priority=5 timeout=4h")
    one = alive(run, observer)
    names = jobs_of(one.ledger, patterns)
    waiting = tuple(name for name in names if one.ledger.jobs[name].state == "waiting")
    if not waiting:
        raise UsageError(f"{names[0]} does not wait ({one.ledger.jobs[names[0]].state})")
    if others := [name for name in names if name not in waiting]:
        observer.note(f"left as they are, since they do not wait: {listing(others, 5)}")
    return one.run, call(one.id, SetFields(waiting, fields), READING, Changed)


def finish(run: str | os.PathLike[str] | None = None, observer: Observer = NOBODY) -> RunDir:
    """Tell a standing run that no more jobs come: it ends once all that it has are over."""
    one = alive(run, observer)
    if not one.ledger.opening.standing:
        raise UsageError(f"{one.run.path} ends by itself once its jobs have: nothing to finish")
    call(one.id, Finish())
    return one.run


# ── Stop and wait ─────────────────────────────────────────────────────────────────────────────────


# ── Cards given back ──────────────────────────────────────────────────────────────────────────────
