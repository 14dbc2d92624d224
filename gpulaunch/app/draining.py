"""Asks a live run to give cards back."""

from __future__ import annotations

import os

from gpulaunch.app.lookup import alive
from gpulaunch.app.observer import NOBODY, Observer
from gpulaunch.control.client import call
from gpulaunch.core.events import DrainGpus
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import Gpu
from gpulaunch.core.selection import ALL, choose, describe
from gpulaunch.digest import words
from gpulaunch.engines.pool import parse
from gpulaunch.errors import UsageError


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
