"""Asks a live run to stop jobs or to give cards back, and waits for a run's end."""

from __future__ import annotations

import os
from collections.abc import Sequence

from msgspec import Struct

from gpulaunch.base.errors import SOME_JOB_FAILED, UsageError
from gpulaunch.core.events import Cancel, DrainGpus
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import ALL, SETTLED_STATES, Gpu, choose, describe
from gpulaunch.journal.liveness import origin_of
from gpulaunch.journal.read import Follower
from gpulaunch.journal.rundir import RunDir
from gpulaunch.observe.present import words
from gpulaunch.observe.present.words import ON_ITS_OWN
from gpulaunch.run.control_client import call
from gpulaunch.run.lookup import (
    NoneAliveError,
    alive,
    jobs_of,
    left_in_queue,
    pulse,
    status,
)
from gpulaunch.run.options import NOBODY, Observer, RunEnd


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
        from gpulaunch.run import resumption  # slow to import, and seldom needed

        resumption.cancel_left(orphan, observer)
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


# ── Cards that are given back ─────────────────────────────────────────────────────────────────────


def drain(
    run: str | os.PathLike[str] | None = None,
    gpus: str = "all",
    observer: Observer = NOBODY,
    *,
    now: bool = False,
    off: bool = False,
) -> None:
    """Give cards of a live run back to the others: no new starts there, running jobs finish.

    `gpus` as `--gpus` has them: all, how many, or which. `now`: what runs there is interrupted, and
    waits again; `off`: the cards are used again. `run` as for `cancel`. Raises UsageError.
    """
    one = alive(run, observer)
    if one.ledger.queueing:
        raise UsageError(f"{one.run.path} runs on a cluster, which has every card back already")
    from gpulaunch.engines.pool import parse  # waiting for a run needs no pool

    selection = parse(gpus)
    every = [record.gpu for record in one.ledger.gpus.values()]
    try:
        if selection.count is None:
            chosen = choose(selection, every)
        else:
            chosen = _any(selection.count, one.ledger, off)
    except LookupError as error:
        raise UsageError(f"--gpus: {error}") from None
    which = None if selection == ALL else tuple(gpu.uuid for gpu in chosen)
    call(one.id, DrainGpus(which, now, off))
    cards = "every card" if which is None else words.cards(chosen)
    if selection.count is not None:
        cards = f"{describe(selection, every)}, {cards},"
    what = "used again" if off else "no new starts there"
    what += ", what runs is interrupted" * now
    observer.note(f"{cards} of {one.run.path}: {what}")


def _any(count: int, ledger: Ledger, off: bool) -> tuple[Gpu, ...]:
    """Return so many cards that are not drained (`off`: that are), those without a job first.

    Raises LookupError where there are not so many, and for none.
    """
    if not count:
        raise LookupError("0 is how many cards, and changes nothing; card 0 is `0,`")
    fit = [record for record in ledger.gpus.values() if record.drained == off]
    if count > len(fit):
        state = "drained" if off else "not drained yet"
        raise LookupError(f"{count} asked for, and {len(fit)} of the run's are {state}")
    fit.sort(key=lambda record: (bool(record.attempts), record.gpu.index))
    return tuple(record.gpu for record in fit[:count])
