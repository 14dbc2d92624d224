"""`gpulaunch cancel`, `drain` and `wait`: what another terminal asks of a live run."""

from __future__ import annotations

import click

from gpulaunch.base.errors import UsageError
from gpulaunch.base.text import shell_word
from gpulaunch.base.wording import run_reason
from gpulaunch.cli import completion
from gpulaunch.cli.options import (
    GPUS_HELP,
    only_alive,
    run_argument,
)
from gpulaunch.cli.output import say
from gpulaunch.cli.terminal import Terminal
from gpulaunch.core.ledger import Ledger
from gpulaunch.journal.rundir import RunDir
from gpulaunch.run import requests


@click.command("cancel")
@only_alive
@click.option("--all", "everything", is_flag=True, help="Every job of the run.")
@click.argument("jobs", nargs=-1, shell_complete=completion.jobs("waiting", "running"))
def cancel(run: str | None, everything: bool, jobs: tuple[str, ...]) -> None:
    """Stop single jobs, or a whole run with --all. JOB may be a pattern.

    \b
    gpulaunch cancel 'fold-x*'
    gpulaunch cancel -r nanobodies-20261120-074215 --all
    """
    if bool(jobs) == everything:
        raise UsageError("name the jobs to cancel, or --all of the run")
    requests.cancel(run, jobs or None, Terminal())


@click.command("drain")
@only_alive
@click.option(
    "--gpus", metavar="SPEC", default="all", shell_complete=completion.gpus, help=GPUS_HELP
)
@click.option("--now", is_flag=True, help="Interrupt what runs there; it goes back to waiting.")
@click.option("--off", is_flag=True, help="Use the cards again.")
def drain(run: str | None, gpus: str, now: bool, off: bool) -> None:
    """Give cards back to the others: no new starts there, running jobs finish.

    \b
    gpulaunch drain --gpus 2,3     these two; --gpus 2: two of them, idle ones first
    gpulaunch drain --off
    """

    requests.drain(run, gpus, Terminal(), now=now, off=off)


@click.command("wait")
@run_argument
def wait(run: str | None) -> int:
    """Wait for a run's end, its report and notifications included; exits as `run` would have.

    \b
    gpulaunch wait && gpulaunch status --json > result.json
    """
    end = requests.wait(run, Terminal())
    if not end.ledger.closed:
        say(
            f"{end.path}: interrupted, its supervisor is gone; go on with it:"
            f" gpulaunch resume {end.path}"
        )
        return end.status
    because = f" ({run_reason(end.ledger.reason)})" if end.ledger.reason else ""
    say(f"{end.path}: {end.ledger.state}{because}")
    if _unreported(end.run, end.ledger):
        say(f"no report of its end is there: gpulaunch report {shell_word(str(end.path))}")
    return end.status


def _unreported(run: RunDir, ledger: Ledger) -> bool:
    """Tell whether no report shows the run's end: none was written, or it was removed.

    A report older than the run's end is of an earlier end. The file system's own times count too: a
    file server's clock may be behind, and a copy's files are all younger.
    """
    if ledger.closed is None or not any(job.attempts for job in ledger.jobs.values()):
        return False
    try:
        ended = min(ledger.closed.utc, run.events.stat().st_mtime)
        return run.report.stat().st_mtime < ended
    except OSError:
        return True
