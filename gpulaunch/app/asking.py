"""Asks a live run to stop jobs, and waits for a run's end."""

from __future__ import annotations

import os
from collections.abc import Sequence

from msgspec import Struct

from gpulaunch.app.lookup import NoneAliveError, alive, jobs_of, left_in_queue, pulse, status
from gpulaunch.app.observer import NOBODY, Observer
from gpulaunch.app.options import RunEnd
from gpulaunch.control.client import call
from gpulaunch.core.events import Cancel
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import SETTLED_STATES
from gpulaunch.digest.words import ON_ITS_OWN
from gpulaunch.errors import SOME_JOB_FAILED, UsageError
from gpulaunch.journal.liveness import origin_of
from gpulaunch.journal.read import Follower
from gpulaunch.journal.rundir import RunDir


class CancelledJobs(Struct, frozen=True):
    """Jobs that a run was told to stop, by name; None: all of them, and so the run."""

    run: RunDir
    names: Sequence[str] | None


def wait(run: str | os.PathLike[str] | None = None, observer: Observer = NOBODY) -> RunEnd:
    """Wait until a run has ended and its report and notifications are done; return its end.

    A run whose supervisor is gone before its end has the status 1, and is not `ledger.closed`.
    Of a run on another machine the journal alone tells that it has ended, its report aside, or
    nothing does. `run` as for `status`.
    """
    one = status(run, observer)
    if one.state == "running" and not one.here:
        where = origin_of(one.run).host
        observer.note(f"it is {where}'s run: waits until its journal tells that it has ended")
    if one.suspended:
        observer.note(one.suspended, urgent=True)
    with Follower(one.run.events) as follower:
        ledger = Ledger()
        while True:
            supervisor = pulse(one.run, one.id)
            follower.fold(ledger)
            if supervisor is None:
                code = ledger.exit_status if ledger.closed else SOME_JOB_FAILED
                return RunEnd(one.run, ledger, code)
            with supervisor:
                follower.wait(also=[supervisor])


def cancel(
    run: str | os.PathLike[str] | None = None,
    jobs: Sequence[str] | None = None,
    observer: Observer = NOBODY,
) -> CancelledJobs:
    """Stop jobs of a live run, by names or patterns; None: all of them, and so the run.

    Returns once the run has taken it up; the jobs may still take their grace to end. Of a run whose
    launcher is gone, None cancels what it left in an engine's queue, and returns once that is over.

    `run`: None is the only live run here. Raises UsageError where no such run is alive, or none of
    the jobs is left to be stopped.
    """
    try:
        one = alive(run, observer)
    except UsageError as error:
        alone = run is not None or isinstance(error, NoneAliveError)
        orphan = left_in_queue(run) if alone else None
        if orphan is None:
            raise
        if jobs is not None:
            raise UsageError(f"{orphan.path} is not alive: {ON_ITS_OWN}") from None
        from gpulaunch.app import resuming  # slow to import, and seldom needed

        resuming.cancel_left(orphan, observer)
        observer.note(f"cancelled what {orphan.path} had in Slurm's queue")
        return CancelledJobs(orphan, None)
    names = None if jobs is None else jobs_of(one.ledger, jobs)
    if names is not None:
        left = [name for name in names if one.ledger.jobs[name].state not in SETTLED_STATES]
        if not left:
            state = one.ledger.jobs[names[0]].state
            raise UsageError(f"nothing to cancel: {names[0]} is over already ({state})")
        names = left
    call(one.id, Cancel(None if names is None else tuple(names)))
    what = "every job" if names is None else ", ".join(names)
    observer.note(f"cancelled {what} of {one.run.path}")
    return CancelledJobs(one.run, names)
