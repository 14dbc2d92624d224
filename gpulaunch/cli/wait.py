"""`gpulaunch wait`: wait for a run's end; exit as the run did."""

from __future__ import annotations

import shlex

import click

from gpulaunch.cli.options import run_argument
from gpulaunch.core.ledger import Ledger
from gpulaunch.journal.rundir import RunDir


@click.command("wait")
@run_argument
def command(run: str | None) -> int:
    """Wait for a run's end, its report and notifications included; exits as `run` would have.

    \b
    gpulaunch wait && gpulaunch status --json > result.json
    """
    from gpulaunch.app.asking import wait
    from gpulaunch.cli.output import say
    from gpulaunch.cli.terminal import Terminal

    end = wait(run, Terminal())
    if not end.ledger.closed:
        say(
            f"{end.path}: interrupted, its supervisor is gone; go on with it:"
            f" gpulaunch resume {end.path}"
        )
        return end.status
    because = f" ({end.ledger.reason})" if end.ledger.reason else ""
    say(f"{end.path}: {end.ledger.state}{because}")
    if _unreported(end.run, end.ledger):
        say(f"no report of its end is there: gpulaunch report {shlex.quote(str(end.path))}")
    return end.status


def _unreported(run: RunDir, ledger: Ledger) -> bool:
    """Whether no report shows the run's end: its launcher was killed before, or it was removed.

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
