"""`gpulaunch cancel`: stop jobs, or a whole run, from another terminal."""

from __future__ import annotations

import click


@click.command("cancel")
@click.option("-r", "--run", metavar="RUN", help="The run; the only one alive here.")
@click.option("--all", "everything", is_flag=True, help="Every job of the run.")
@click.argument("jobs", nargs=-1)
def command(run: str | None, everything: bool, jobs: tuple[str, ...]) -> None:
    """Stop single jobs, or a whole run with --all. JOB may be a pattern.

    \b
    gpulaunch cancel 'fold-x*'
    gpulaunch cancel -r nanobodies-20261120-074215 --all
    """
    from gpulaunch.app.asking import cancel
    from gpulaunch.cli.terminal import Terminal
    from gpulaunch.errors import UsageError

    if bool(jobs) == everything:
        raise UsageError("name the jobs to cancel, or --all of the run")
    cancel(run, jobs or None, Terminal())
