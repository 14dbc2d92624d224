"""`gpulaunch drain`: give cards of a live run back to the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from gpulaunch.core.ledger import Ledger
    from gpulaunch.core.model import Gpu


@click.command("drain")
@click.option("-r", "--run", metavar="RUN", help="The run; the only one alive here.")
@click.option(
    "--gpus", metavar="SPEC", default="all", help="all; how many; which: 0,2 (one: 2,), UUIDs."
)
@click.option("--now", is_flag=True, help="Interrupt what runs there; it goes back to waiting.")
@click.option("--off", is_flag=True, help="Use the cards again.")
def command(run: str | None, gpus: str, now: bool, off: bool) -> None:
    """Give cards back to the others: no new starts there, running jobs finish.

    \b
    gpulaunch drain --gpus 2,3     these two; --gpus 2: two of them, idle ones first
    gpulaunch drain --off
    """
    from gpulaunch.cli.lookup import alive
    from gpulaunch.cli.output import say
    from gpulaunch.control import call
    from gpulaunch.core.events import DrainGpus
    from gpulaunch.core.selection import ALL, choose, describe
    from gpulaunch.engines.pool import parse
    from gpulaunch.errors import UsageError
    from gpulaunch.views import words

    one = alive(run)
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
    say(f"{cards} of {one.run.path}: {what}{', what runs is interrupted' if now else ''}")


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
