"""`gpulaunch report`: a run as one page, written anew."""

from __future__ import annotations

from pathlib import Path

import click

from gpulaunch.app.damage import tell
from gpulaunch.app.lookup import directory
from gpulaunch.cli.options import run_argument
from gpulaunch.cli.terminal import Terminal
from gpulaunch.journal.finding import typed
from gpulaunch.journal.lines import Fault
from gpulaunch.journal.liveness import state_of
from gpulaunch.report.write import write


@click.command("report")
@run_argument
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write it there; report.html in the run's directory.",
)
def command(run: str | None, output: Path | None) -> None:
    """Write a run's report.html anew: finished, crashed or as far as it is. RUN: the newest one.

    \b
    gpulaunch report
    gpulaunch report gpulaunch-runs/nanobodies-20261120-074215 --output night.html
    """
    terminal, faults = Terminal(), list[Fault]()
    one = directory(run, terminal)
    click.echo(typed(write(one, output, faults=faults)))
    tell(one, faults, state_of(one), terminal)
