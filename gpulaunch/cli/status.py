"""`gpulaunch status` and `report`: what became of a run and its jobs, in words and as a page."""

from __future__ import annotations

from pathlib import Path

import click

from gpulaunch.base.errors import UsageError
from gpulaunch.base.text import shell_word
from gpulaunch.cli import completion
from gpulaunch.cli.options import as_json, run_argument, run_option
from gpulaunch.cli.output import print_json, say, stdout_console
from gpulaunch.cli.terminal import Terminal
from gpulaunch.journal.find import typed
from gpulaunch.journal.liveness import state_of
from gpulaunch.journal.read import Fault
from gpulaunch.journal.rundir import queue_dir, queue_dirs
from gpulaunch.observe.present.status import status_json
from gpulaunch.run import lookup
from gpulaunch.run.damage import tell, tell_of_metrics
from gpulaunch.run.lookup import FoundRun, directory, jobs_of
from gpulaunch.run.standing import command_in, standing_of


@click.command("status")
@click.argument(
    "what", required=False, metavar="[RUN | JOB]", shell_complete=completion.jobs_or_runs()
)
@run_option("The run; the newest one here.")
@click.option("--all", "everything", is_flag=True, help="List every job.")
@as_json
def status(what: str | None, run: str | None, everything: bool, as_json: bool) -> None:
    """Show every job's state, and why jobs wait. RUN: the newest one here.

    Of a JOB, which may be a pattern: everything there is to know.

    \b
    gpulaunch status
    gpulaunch status fold-x2
    gpulaunch status --json | jq '.jobs[] | select(.state == "failed")'
    """
    from gpulaunch.observe.terminal.standing import print_job, print_status

    one, names = _asked_for(what, run)
    standing = standing_of(one, names, "/" if as_json else None)
    if as_json:
        told = status_json(standing)
        if names:
            told["jobs"] = [job for job in told["jobs"] if job["name"] in set(names)]
        print_json(told)
        return
    console = stdout_console()
    if not names:
        print_status(console, standing, everything)
        if one.run == queue_dir() and (older := queue_dirs()[1:]):
            say(f"older jobs of the queue: gpulaunch status {shell_word(str(older[0].path))}")
        return
    for number, name in enumerate(names):
        if number:
            console.print()
        print_job(console, standing, one.ledger.jobs[name], command_in(standing, name))


def _asked_for(what: str | None, run: str | None) -> tuple[FoundRun, list[str]]:
    """Return the run and the jobs asked for, none for the whole run. Raises UsageError."""
    terminal = Terminal()
    if run is not None or what is None:
        jobs = [what] if what is not None else []
        one = lookup.status(run, terminal, jobs)
        return one, jobs_of(one.ledger, jobs)
    try:
        return lookup.status(what, terminal), []
    except UsageError as error:
        no_run = error
    try:
        one = lookup.status(None, terminal)
        return one, jobs_of(one.ledger, [what])
    except UsageError:
        raise no_run from None


@click.command("report")
@run_argument
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write it there; report.html in the run's directory.",
)
@click.option(
    "--file",
    "files",
    multiple=True,
    metavar="PATH",
    help="The file of figures in each job's {{out}} (metrics.json), as of gpulaunch results.",
)
def report(run: str | None, output: Path | None, files: tuple[str, ...]) -> None:
    """Write a run's report.html anew: finished, crashed or as far as it is. RUN: the newest one.

    \b
    gpulaunch report
    gpulaunch report gpulaunch-runs/nanobodies-20261120-074215 --output night.html
    """
    from gpulaunch.observe.report.write import write
    from gpulaunch.run.outputs import checked_files

    terminal, faults = Terminal(), list[Fault]()
    looked_for = checked_files(files)
    one = directory(run, terminal)
    click.echo(typed(write(one, output, faults=faults, files=looked_for)))
    state = state_of(one)
    tell(one, faults, state, terminal)
    tell_of_metrics(one, state, terminal)
