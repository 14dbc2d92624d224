"""Runs by what people type, and jobs of a run by name or pattern."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from gpulaunch.cli.damage import remembered
from gpulaunch.control import NoAnswerError, live_runs, reasons
from gpulaunch.core.ledger import CUT_OFF, Ledger
from gpulaunch.core.mending import UNRECORDED
from gpulaunch.core.model import Job, RunState
from gpulaunch.errors import UsageError
from gpulaunch.journal.liveness import origin_of, refuse_elsewhere, state_of
from gpulaunch.journal.rundir import RunDir, find
from gpulaunch.session import EXPLAINED
from gpulaunch.views.words import ON_ITS_OWN

PATIENCE = 2.0
KNOWN = frozenset({CUT_OFF, UNRECORDED})
"""Reasons to wait that hold whether the run is alive or not."""


class Found:
    """A run as it stands now. `here`: it is this machine's, and its state is known for sure."""

    def __init__(self, run: RunDir) -> None:
        self.run = run
        self.state: RunState = state_of(run)
        self.here = origin_of(run).here
        self.ledger: Ledger = remembered(run, self.state)
        if self.state == "interrupted":
            self.ledger.cut_off()

    @property
    def id(self) -> str:
        return self.ledger.run

    def reasons(self) -> dict[str, str]:
        """Why each waiting job waits: the live run knows; of another, why it went no further."""
        jobs = self.ledger.jobs.values()
        waiting = [job.name for job in jobs if job.state == "waiting" and job.reason not in KNOWN]
        if self.state != "running":
            why = f"not started: {self.ledger.reason or f'the run was {self.state}'}"
            known = {name: self.ledger.jobs[name] for name in waiting}
            return {
                name: self.ledger.reason_of(job) if job.in_queue else why
                for name, job in known.items()
            }
        if not self.here:
            known = {name: self.ledger.jobs[name] for name in waiting}
            return {name: self.ledger.reason_of(job) for name, job in known.items()}
        try:
            told = reasons(self.id, PATIENCE)
        except NoAnswerError as error:
            return dict.fromkeys(waiting, str(error))
        if len(told) < EXPLAINED:
            return dict(told)
        return {name: told.get(name, behind(told)) for name in waiting}


def found(run: str | None) -> Found:
    """The run of that directory, name or id: here, else among the live ones; or the newest here."""
    return Found(directory(run))


def directory(run: str | None) -> RunDir:
    """The same, unread."""
    try:
        return find(run, Path.cwd())
    except UsageError:
        own = [info for info in live_runs() if info.own]
        alive = [info for info in own if run is not None and run in (info.id, info.name)]
        if len(alive) != 1 or alive[0].dir is None:
            raise
        return RunDir(alive[0].dir)


def alive(run: str | None) -> Found:
    """The live run that is named, or the only one of this user. Raises UsageError."""
    if run is not None:
        one = found(run)
        if one.state != "running":
            raise UsageError(f"{one.run.path} is not alive: it {_was(one)}")
        refuse_elsewhere(one.run)
        return one
    mine = [info for info in live_runs() if info.own and info.dir is not None]
    if len(mine) != 1 or mine[0].dir is None:
        have = ", ".join(str(info.dir) for info in mine) or "none is"
        raise UsageError(f"name the run (-r RUN), unless exactly one is alive (alive: {have})")
    return Found(RunDir(mine[0].dir))


def behind(told: Sized) -> str:
    """What is said of the waiting jobs of which the run did not say why."""
    return f"waits behind {len(told):,} others"


def jobs_of(ledger: Ledger, patterns: Sequence[str]) -> list[str]:
    """Names of jobs, in the run's order. Raises UsageError for a pattern that fits none."""
    chosen: dict[str, None] = {}
    for pattern in patterns:
        if pattern in ledger.jobs:
            chosen[pattern] = None
            continue
        fits = [name for name in ledger.jobs if fnmatchcase(name, pattern)]
        if not fits:
            raise UsageError(f"no job of {ledger.name} is called {pattern}{_near(pattern, ledger)}")
        chosen.update(dict.fromkeys(fits))
    return list(chosen)


def with_needs(jobs: Sequence[Job], patterns: Sequence[str], ledger: Ledger) -> list[Job]:
    """The jobs that a pattern names, with those they need and that have not succeeded yet."""
    if not patterns:
        return list(jobs)
    by_name = {job.name: job for job in jobs}
    todo = [n for n in by_name if any(fnmatchcase(n, pattern) for pattern in patterns)]
    if not todo:
        raise UsageError(f"--only {patterns[0]}: no job of the file has such a name")
    chosen = set(todo)
    while todo:
        for need in by_name[todo.pop()].needs:
            known = ledger.jobs.get(need)
            if need not in chosen and not (known and known.state == "succeeded"):
                chosen.add(need)
                todo.append(need)
    there = chosen | ledger.jobs.keys()
    return [
        replace(job, after=tuple(n for n in job.after if n in there))
        for job in jobs
        if job.name in chosen
    ]


def _near(name: str, ledger: Ledger) -> str:
    import difflib

    near = difflib.get_close_matches(name, ledger.jobs, 1)
    return f"; did you mean {near[0]}?" if near else "; `gpulaunch status --all` lists them"


def _was(one: Found) -> str:
    if one.state != "interrupted":
        return f"ended ({one.state})"
    goes_on = one.ledger.queueing and one.ledger.open_attempts()
    return f"was interrupted; {ON_ITS_OWN}" if goes_on else "was interrupted"
