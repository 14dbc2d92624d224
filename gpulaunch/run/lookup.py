"""Finds runs by what people type, jobs of a run by name or pattern, and the logs that are meant."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from socket import socket

from msgspec import Struct
from msgspec.structs import replace

from gpulaunch.base.errors import UsageError
from gpulaunch.base.text import listing, shell_word
from gpulaunch.core.causes import Quoted
from gpulaunch.core.graph import reached
from gpulaunch.core.ledger import AttemptRecord, JobRecord, Ledger
from gpulaunch.core.model import AttemptId, Job, RunState
from gpulaunch.core.reasons import (
    InQueue,
    NeedsOthers,
    NextInWorker,
    NothingStarts,
    RunOver,
    RunReason,
    WaitReason,
)
from gpulaunch.journal.find import (
    Here,
    find_or_queue,
    here,
    is_of,
    is_ours,
    names_of,
    nothing_under,
    owner_of,
    typed,
    working_directory,
)
from gpulaunch.journal.liveness import origin_of, original_of, refuse_elsewhere, state_of
from gpulaunch.journal.ownership import require_own
from gpulaunch.journal.read import replay, states_of
from gpulaunch.journal.rundir import QUEUE, RunDir, queue_dir, queue_dirs
from gpulaunch.observe.life_signs import mark_last_seen
from gpulaunch.observe.present.words import ON_ITS_OWN
from gpulaunch.run.control_client import live_runs, present, reasons, suspended, watch
from gpulaunch.run.control_protocol import EXPLAINED, NoAnswerError
from gpulaunch.run.damage import remembered
from gpulaunch.run.options import NOBODY, Observer

SUPERVISOR_ANSWER_TIMEOUT = 2.0
NEXT_DIRECTORY_TIMEOUT = 30.0
"""Seconds for a queue to write the report of a full directory, and to begin the next one."""
MAX_RUNS_NAMED = 10
"""Live runs that an error names."""


class NoneAliveError(UsageError):
    """No run that belongs to the working directory is alive."""


class FoundRun:
    """A run as it stands now. `here`: it is this machine's, and its state is known for sure."""

    def __init__(self, run: RunDir, observer: Observer) -> None:
        self.run = run
        self.state: RunState = state_of(run)
        self.here = origin_of(run).here
        self.ledger: Ledger = remembered(run, self.state, observer)
        self.suspended = ""
        """That the launcher of the live run is stopped or frozen, in words; empty if not."""
        if self.state == "running" and self.here:
            self.suspended = suspended(self.id, owner_of(run))
        if self.state == "interrupted":
            mark_last_seen(run, self.ledger)
        if self.state != "running":
            self.ledger.cut_off()  # of a run that was closed: attempts whose ends are damaged lines

    @property
    def id(self) -> str:
        return self.ledger.opening.run

    def reasons(self) -> dict[str, WaitReason]:
        """Why each waiting job waits: by a live run's answer; for another, why it went no further.

        Also what a live run doubts of a job that runs. A reason that holds whether the run is alive
        or not stands in the job's record.
        """
        jobs = self.ledger.jobs.values()
        waiting = [job.name for job in jobs if job.state == "waiting" and not job.unrecorded]
        if self.state != "running":
            over = self.ledger.reason or RunOver(self.state)
            return {name: self._queued(name) or self._over(name, over) for name in waiting}
        if not self.here:
            return {name: place for name in waiting if (place := self._queued(name))}
        if self.suspended:
            return dict.fromkeys(waiting, Quoted("its launcher is suspended"))
        try:
            told = reasons(self.id, SUPERVISOR_ANSWER_TIMEOUT)
        except NoAnswerError as error:
            return dict.fromkeys(waiting, Quoted(str(error)))
        if len(waiting) <= EXPLAINED:
            return dict(told)
        return dict.fromkeys(waiting, NeedsOthers(EXPLAINED)) | dict(told)

    def _over(self, name: str, over: RunReason) -> NothingStarts:
        return NothingStarts(over, again=self.ledger.jobs[name].began)

    def _queued(self, name: str) -> InQueue | NextInWorker | None:
        return self.ledger.why_queued(self.ledger.jobs[name])


def status(
    run: str | os.PathLike[str] | None = None,
    observer: Observer = NOBODY,
    jobs: Sequence[str] = (),
) -> FoundRun:
    """Return a run as it stands now, found by its directory, name, id or job file.

    Left out, it is the newest one under the working directory, or under its nearest parent that has
    one. `jobs` as for `directory`. Raises UsageError where there is none.
    """
    return FoundRun(directory(run, observer, jobs), observer)


def directory(
    run: str | os.PathLike[str] | None, observer: Observer, jobs: Sequence[str] = ()
) -> RunDir:
    """Return the run of that directory, name, id or job file: here, else among the live ones.

    Left out, it is the newest one here, and a note says which, unless there is no other. `jobs`:
    names or patterns of jobs that are asked for. If the user's queue is meant, and its newest
    directory does not have these jobs, an older directory that has them is returned. Raises
    UsageError.
    """
    one = _directory(run, observer)
    queue = queue_dirs() if jobs else []
    if one not in queue[:1] or _has(one, jobs):
        return one
    return next((older for older in queue[1:] if _has(older, jobs)), one)


def _has(run: RunDir, jobs: Sequence[str]) -> bool:
    """Return True if each name or pattern means a job of the run."""
    try:
        known = states_of(run)
    except OSError:
        return False
    return all(job in known or any(fnmatchcase(name, job) for name in known) for job in jobs)


def _directory(run: str | os.PathLike[str] | None, observer: Observer) -> RunDir:
    if run is None:
        near = runs_here()
        if len(near.runs) > 1 or near.directory != working_directory():
            observer.note(_which(near))
        return near.runs[0]
    run = os.fspath(run)
    try:
        return find_or_queue(run, _start(run))
    except UsageError:
        fits = [one for one in _named_directories() if _means(one, run)]
        if not fits:
            raise
    if len(fits) > 1:
        raise UsageError(f"{len(fits)} live runs are meant by {run}: name one of {_listed(fits)}")
    return fits[0]


def own_directory(
    run: str | os.PathLike[str] | None, observer: Observer, jobs: Sequence[str] = ()
) -> RunDir:
    """Return the run that `directory` returns, for what starts something from it.

    Raises UsageError also for a run that another user owns or may change.
    """
    one = directory(run, observer, jobs)
    require_own(one)
    return one


def alive(run: str | os.PathLike[str] | None, observer: Observer) -> FoundRun:
    """Return the live run of that name; without one, the only live run here. Raises UsageError."""
    return FoundRun(alive_dir(run, observer), observer)


def alive_dir(run: str | os.PathLike[str] | None, observer: Observer) -> RunDir:
    """Return the directory of the live run that `alive` returns. Its journal is not read."""
    if run is not None:
        one = directory(run, observer)
        if one == queue_dir():
            one = living_queue() or one
        if state_of(one) != "running":
            raise UsageError(f"{one.path} is not alive: it {_was(FoundRun(one, observer))}")
        refuse_elsewhere(one)
        _require_answer_of(one)
        return one
    near = here(working_directory(), _begun_in_directories())
    living = [each for each in near.runs if state_of(each) == "running"] if near else []
    if not living:
        where = near.directory if near else working_directory()
        raise NoneAliveError(f"no run of {where} is alive{_elsewhere(near)}")
    if len(living) > 1:
        raise UsageError(f"{len(living)} runs are alive here: name one with -r: {_listed(living)}")
    refuse_elsewhere(living[0])
    _require_answer_of(living[0])
    return living[0]


def living_queue() -> RunDir | None:
    """Return this user's queue if it is alive. Waits while it goes over to its next directory."""
    until = time.monotonic() + NEXT_DIRECTORY_TIMEOUT
    while (run := queue_dir()).holds_run:
        if state_of(run) == "running":
            return run
        if time.monotonic() > until or not replay(run.events).is_full:
            return None
        time.sleep(0.5)
    return None


def left_in_queue(run: str | os.PathLike[str] | None) -> RunDir | None:
    """Return the run that is meant, where it has attempts in a queue and no launcher any more."""
    try:
        one = directory(run, NOBODY)
        if state_of(one) != "interrupted":
            return None
        ledger = replay(one.events)
    except UsageError:
        return None
    return one if ledger.queueing and ledger.open_attempts() else None


def _require_answer_of(run: RunDir) -> None:
    """Raise UsageError if the supervisor of that id has another directory.

    Anybody can write the id of a live run into a manifest. A directory of this user's own is
    believed.
    """
    if is_ours(run):
        return
    said = present(origin_of(run).run)
    if os.path.realpath(said.dir) != os.path.realpath(run.path):
        raise UsageError(f"{run.path} is not alive: it has the id of the run in {said.dir}")


def alive_of(job_file: Path) -> list[RunDir]:
    """Return this user's live runs of a job file, in any directory of this machine."""
    real = os.path.realpath(job_file)
    return [run for run in _named_directories() if is_of(run, real)]


def runs_here() -> Here:
    """Return the runs of the working directory, or else of its nearest parent.

    If the working directory has none, live runs kept in directories of their own count too.
    """
    cwd = working_directory()
    near = here(cwd)
    if near is None or near.directory != cwd:
        near = here(cwd, _begun_in_directories())
    if near is None:
        raise UsageError(f"{nothing_under(cwd)}{_elsewhere()}")
    return near


def _which(near: Here) -> str:
    newest = typed(near.runs[0].path)
    if near.directory == working_directory():
        return f"the newest run here: {newest}"
    return f"the newest run of {near.directory}: {newest}"


def _start(run: str) -> Path:
    """Return the directory in which to look for a run first."""
    try:
        return working_directory()
    except UsageError:
        if not os.path.isabs(run):
            raise
    return Path("/")


def _named_directories() -> list[RunDir]:
    """Return this user's live runs, in any directory of this machine."""
    return [RunDir(one.dir) for one in live_runs() if one.own and one.dir]


def _begun_in_directories() -> list[RunDir]:
    """Return these without the user's queue, which belongs to no directory."""
    queue = queue_dir()
    return [run for run in _named_directories() if run != queue]


def _means(run: RunDir, typed: str) -> bool:
    return typed in names_of(run) or ("\0" not in typed and is_of(run, os.path.realpath(typed)))


def _elsewhere(near: Here | None = None) -> str:
    """Return the end of an error that names the live runs elsewhere, not near here; else ""."""
    # One of those near here that only writes its report is over, and answers nevertheless.
    runs = [run for run in _named_directories() if near is None or run not in near.runs]
    return f"; alive elsewhere (name it with -r): {_listed(runs)}" if runs else ""


def _listed(runs: Sequence[RunDir]) -> str:
    queue = queue_dir()
    named = queue in runs and find_or_queue(QUEUE, working_directory()) == queue
    names = (QUEUE if named and each == queue else str(each.path) for each in runs)
    return listing(map(shell_word, names), shown=MAX_RUNS_NAMED)


class UnseenLife:
    """The life of a supervisor on another machine: no descriptor tells of its end."""

    def fileno(self) -> int:
        return -1

    def __enter__(self) -> UnseenLife:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def pulse(run: RunDir, id: str) -> socket | UnseenLife | None:
    """Return a connection that is readable once the run's supervisor is gone.

    None if it is gone, and for a copy of a run, whose id is the original's. That of another machine
    is alive as long as the run is not closed.
    """
    if original_of(run):
        return None
    if (link := watch(id, owner_of(run))) or origin_of(run).here:
        return link
    return UnseenLife() if state_of(run) == "running" else None


def jobs_of(ledger: Ledger, patterns: Sequence[str]) -> list[str]:
    """Return the names of jobs, in the run's order. Raises UsageError if a pattern fits none."""
    chosen: dict[str, None] = {}
    for pattern in patterns:
        if pattern in ledger.jobs:
            chosen[pattern] = None
            continue
        fits = [name for name in ledger.jobs if fnmatchcase(name, pattern)]
        if not fits:
            raise UsageError(
                f"no job of {ledger.opening.name} is called {pattern}{_near(pattern, ledger)}"
            )
        chosen.update(dict.fromkeys(fits))
    return list(chosen)


def with_needs(jobs: Sequence[Job], patterns: Sequence[str], ledger: Ledger) -> list[Job]:
    """Return the jobs that the patterns fit, with their needs that have not succeeded yet."""
    if not patterns:
        return list(jobs)
    by_name = {job.name: job for job in jobs}
    named = [n for n in by_name if any(fnmatchcase(n, pattern) for pattern in patterns)]
    if not named:
        raise UsageError(f"--only {patterns[0]}: no job of the file has such a name")
    done = {record.name for record in ledger.jobs.values() if record.state == "succeeded"}
    chosen = reached(named, lambda name: [n for n in by_name[name].needs if n not in done])
    there = chosen.keys() | ledger.jobs.keys()
    return [
        replace(job, after=tuple(n for n in job.after if n in there))
        for job in jobs
        if job.name in chosen
    ]


def _near(name: str, ledger: Ledger) -> str:
    import difflib

    near = difflib.get_close_matches(name, ledger.jobs, 1)
    return f"; did you mean {near[0]}?" if near else "; `gpulaunch status --all` lists them"


def _was(one: FoundRun) -> str:
    if one.state != "interrupted":
        return f"ended ({one.state})"
    goes_on = one.ledger.queueing and one.ledger.open_attempts()
    return f"was interrupted; {ON_ITS_OWN}" if goes_on else "was interrupted"


# ── Paths as people type them ─────────────────────────────────────────────────────────────────────


# ── Logs ──────────────────────────────────────────────────────────────────────────────────────────


class LogSelection(Struct, frozen=True):
    """Which logs: of the jobs named (None: of all), and of which attempt (None: the newest)."""

    run: RunDir
    run_id: str
    names: Sequence[str] | None
    attempt: int | None
    raw: bool

    def includes(self, attempt: AttemptId) -> bool:
        named = self.names is None or attempt.job in self.names
        return named and self.attempt in (None, attempt.number)


def attempts_of(wanted: LogSelection, ledger: Ledger) -> list[AttemptRecord]:
    """Return the attempt of each job whose log is meant. Raises UsageError if none has a log."""
    jobs = ledger.jobs.values() if wanted.names is None else map(ledger.jobs.get, wanted.names)
    chosen = [_attempt(job, wanted.attempt) for job in jobs if job and job.attempts]
    have = [
        attempt
        for attempt in chosen
        if attempt and (wanted.run.log(attempt.id).exists() or is_silent(wanted, attempt))
    ]
    if not have:
        which = f"attempt {wanted.attempt} of " if wanted.attempt else ""
        jobs_ = "any job" if wanted.names is None else ", ".join(wanted.names)
        raise UsageError(f"there is no log of {which}{jobs_} in {wanted.run.path}")
    return have


def is_silent(wanted: LogSelection, attempt: AttemptRecord) -> bool:
    """Tell whether the attempt succeeded without a word: its cluster's node keeps no log then."""
    on_node = bool(attempt.node) and attempt.state == "succeeded"
    return on_node and not wanted.run.log(attempt.id).exists()


def _attempt(job: JobRecord, number: int | None) -> AttemptRecord | None:
    if number is None:
        begun = (attempt for attempt in reversed(job.attempts) if not attempt.unbegun)
        return next(begun, job.attempts[-1])
    return job.attempts[number - 1] if number <= len(job.attempts) else None
