"""`gpulaunch drain`: give cards of a live run back to the others."""

from __future__ import annotations

import click


@click.command("drain")
@click.option(
    "-r", "--run", metavar="RUN", help="The run; needed unless exactly one is alive here."
)
@click.option("--gpus", metavar="SPEC", default="all", help="Which cards: [0,2], UUIDs; all.")
@click.option("--now", is_flag=True, help="Interrupt what runs there; it goes back to waiting.")
@click.option("--off", is_flag=True, help="Use the cards again.")
def command(run: str | None, gpus: str, now: bool, off: bool) -> None:
    """Give cards back to the others: no new starts there, running jobs finish.

    \b
    gpulaunch drain --gpus [2,3]
    gpulaunch drain --off
    """
    from gpulaunch.cli.lookup import alive
    from gpulaunch.cli.output import say
    from gpulaunch.control import call
    from gpulaunch.core.events import DrainGpus
    from gpulaunch.core.selection import choose
    from gpulaunch.engines.pool import parse
    from gpulaunch.errors import UsageError

    one = alive(run)
    if one.ledger.queueing:
        raise UsageError(f"{one.run.path} runs on a cluster, which has every card back already")
    selection = parse(gpus)
    if selection.count is not None:
        raise UsageError(f"--gpus {gpus}: say which cards, as in --gpus [{gpus}]")
    try:
        chosen = choose(selection, [record.gpu for record in one.ledger.gpus.values()])
    except LookupError as error:
        raise UsageError(f"--gpus: {error}") from None
    which = None if selection.which is None else tuple(gpu.uuid for gpu in chosen)
    call(one.id, DrainGpus(which, now, off))
    cards = "every card" if which is None else f"GPU {', '.join(str(g.index) for g in chosen)}"
    what = "used again" if off else "no new starts there"
    say(f"{cards} of {one.run.path}: {what}{', what runs is interrupted' if now else ''}")
