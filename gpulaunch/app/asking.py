"""Asks live runs for something: to stop jobs, to give cards back; and waits for a run's end."""

from __future__ import annotations

import os
from collections.abc import Sequence

from gpulaunch.app.lookup import alive, jobs_of, pulse, status
from gpulaunch.app.observer import NOBODY, Observer
from gpulaunch.app.options import RunEnd
from gpulaunch.control.client import call
from gpulaunch.core.events import Cancel, DrainGpus
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import SETTLED_STATES, Gpu
from gpulaunch.core.selection import ALL, choose, describe
from gpulaunch.digest import words
from gpulaunch.engines.pool import parse
from gpulaunch.errors import SOME_JOB_FAILED, UsageError
from gpulaunch.journal.read import Follower


def wait(run: str | os.PathLike[str] | None = None, observer: Observer = NOBODY) -> RunEnd:
    """Wait for a run's end, its report and notifications included; return what it came to.

    A run whose supervisor is gone before its end has the status 1, and is not `ledger.closed`.
    `run` as for `status`.
    """
    one = status(run, observer)
    with Follower(one.run.events) as follower:
        ledger = Ledger()
        while True:
            supervisor = pulse(one.run, one.id)
            for fact, at in follower.read():
                ledger.apply(fact, at)
            if supervisor is None:
                code = ledger.exit_status if ledger.closed else SOME_JOB_FAILED
                return RunEnd(one.run, ledger, code)
            with supervisor:
                follower.wait(also=[supervisor])


def cancel(
    run: str | os.PathLike[str] | None = None,
    jobs: Sequence[str] | None = None,
    observer: Observer = NOBODY,
) -> None:
    """Stop jobs of a live run, by names or patterns; None: all of them, and so the run.

    `run`: None is the only live run here. Raises UsageError where no such run is alive, or none of
    the jobs is left to be stopped.
    """
    one = alive(run, observer)
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

    Raises LookupError where there are not so many.
    """
    fit = [record for record in ledger.gpus.values() if record.drained == off]
    if count > len(fit):
        state = "drained" if off else "not drained yet"
        raise LookupError(f"{count} asked for, and {len(fit)} of the run's are {state}")
    fit.sort(key=lambda record: (bool(record.attempts), record.gpu.index))
    return tuple(record.gpu for record in fit[:count])
