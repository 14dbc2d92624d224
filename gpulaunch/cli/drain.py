"""`gpulaunch drain`: give cards of a live run back to the others."""

from __future__ import annotations

import click


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
    from gpulaunch.app.asking import drain
    from gpulaunch.cli.terminal import Terminal

    drain(run, gpus, Terminal(), now=now, off=off)
