"""`gpulaunch report`: a run as one page, written anew."""

from __future__ import annotations

from pathlib import Path

import click

from gpulaunch.cli.options import run_argument


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
    from gpulaunch.cli.lookup import directory
    from gpulaunch.cli.output import typed
    from gpulaunch.report.write import write

    click.echo(typed(write(directory(run), output)))
