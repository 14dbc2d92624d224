"""`gpulaunch status` and `report`: what became of a run and its jobs, in words and as a page."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec.structs import replace

from gpulaunch.app import lookup
from gpulaunch.app.archived import added_jobs, older_ledgers
from gpulaunch.app.damage import tell
from gpulaunch.app.lookup import FoundRun, directory
from gpulaunch.cli.options import as_json, run_argument
from gpulaunch.cli.output import TypedPaths, print_json, stdout_console
from gpulaunch.cli.terminal import Terminal
from gpulaunch.core.model import Job
from gpulaunch.digest.status import Standing, status_json
from gpulaunch.errors import GpulaunchError, UsageError
from gpulaunch.journal.codec import now
from gpulaunch.journal.earlier import durations_before
from gpulaunch.journal.finding import typed
from gpulaunch.journal.joblog import command_line, what_runs
from gpulaunch.journal.lines import Fault
from gpulaunch.journal.liveness import state_of
from gpulaunch.metrics.read import measured

USES_READ = 20_000
"""Attempts whose use is read of a run that has archived jobs: more than those that it shows."""

if TYPE_CHECKING:
    from gpulaunch.contracts.documents import RunJob


@click.command("status")
@click.argument("what", required=False, metavar="[RUN | JOB]")
@click.option("-r", "--run", metavar="RUN", help="The run; the newest one here.")
@click.option("--all", "everything", is_flag=True, help="List every job, archived ones too.")
@as_json
def status(what: str | None, run: str | None, everything: bool, as_json: bool) -> None:
    """Show every job's state, and why jobs wait. RUN: the newest one here.

    Of a JOB, which may be a pattern: everything there is to know.

    \b
    gpulaunch status
    gpulaunch status fold-x2
    gpulaunch status --json | jq '.jobs[] | select(.state == "failed")'
    """
    from gpulaunch.views.standing import print_job, print_older, print_status

    one, names = _asked_for(what, run)
    paths = TypedPaths(one.run, "/" if as_json else None)
    digests = {job.name: job.definition.digest for job in one.ledger.jobs.values()}
    earlier = partial(durations_before, one.run, digests)
    newest = USES_READ if one.ledger.history and not everything else None
    attempts = [each.id for name in names for each in one.ledger.jobs[name].attempts]
    used, why, at = measured(one.run.metrics, newest, attempts), one.reasons(), now()
    standing = Standing(one.ledger, paths, one.state, why, at, used, earlier, one.here)
    if as_json:
        told = status_json(standing)
        older: list[RunJob] = []
        if everything and not names:
            for ledger in older_ledgers(one.run, one.ledger):
                older += status_json(replace(standing, ledger=ledger))["jobs"]
            told["jobs"] = older + told["jobs"]
        if names:
            told["jobs"] = [job for job in told["jobs"] if job["name"] in set(names)]
        print_json(told)
        return
    console = stdout_console()
    if not names:
        print_status(console, standing, everything)
        if everything and one.ledger.history:
            print_older(console, standing, older_ledgers(one.run, one.ledger))
        return
    commands = _commands(one, names)
    for number, name in enumerate(names):
        if number:
            console.print()
        print_job(console, standing, one.ledger.jobs[name], commands.get(name, ""))


def _asked_for(what: str | None, run: str | None) -> tuple[FoundRun, list[str]]:
    """Return the run and the jobs asked for, none for the whole run. Raises UsageError."""
    terminal = Terminal()
    if run is not None or what is None:
        one = lookup.status(run, terminal)
        return one, one.jobs_of([what]) if what is not None else []
    try:
        return lookup.status(what, terminal), []
    except UsageError as error:
        no_run = error
    try:
        one = lookup.status(None, terminal)
        return one, one.jobs_of([what])
    except UsageError:
        raise no_run from None


def _commands(one: FoundRun, names: Sequence[str]) -> dict[str, str]:
    """Return each job's command by name, from the run's copy of its file; empty if that is lost.

    Those of jobs that were added are in the journal, or in the history.
    """
    from gpulaunch.app.rereading import recorded_plan

    found: dict[str, Job] = {}
    with suppress(OSError, GpulaunchError):
        plan = recorded_plan(one.run, one.run.read_manifest())
        found = {job.name: job for job in plan.jobs}
    with suppress(GpulaunchError):
        if any(one.ledger.jobs[name].definition.given for name in names):
            found |= added_jobs(one.run, one.ledger, names)
    return {name: _in_words(job) for name, job in found.items()}


def _in_words(job: Job) -> str:
    """Return the job's command, and the image that it runs in."""
    command = command_line(what_runs(job))
    return command if job.container is None else f"{command} (in {job.container.image})"


@click.command("report")
@run_argument
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write it there; report.html in the run's directory.",
)
@click.option("--all", "everything", is_flag=True, help="With archived jobs, which takes longer.")
def report(run: str | None, output: Path | None, everything: bool) -> None:
    """Write a run's report.html anew: finished, crashed or as far as it is. RUN: the newest one.

    \b
    gpulaunch report
    gpulaunch report gpulaunch-runs/nanobodies-20261120-074215 --output night.html
    """
    from gpulaunch.report.fold import read_whole_history
    from gpulaunch.report.write import write

    terminal, faults = Terminal(), list[Fault]()
    one = directory(run, terminal)
    history = read_whole_history(one, faults) if everything else None
    click.echo(typed(write(one, output, faults=faults, history=history)))
    tell(one, faults, state_of(one), terminal)
