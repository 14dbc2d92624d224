"""`gpulaunch wait`: wait for a run's end; exit as the run did."""

from __future__ import annotations

import shlex

import click

from gpulaunch import errors
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
    from gpulaunch.cli.lookup import found, pulse
    from gpulaunch.cli.output import say
    from gpulaunch.journal.read import Follower

    one = found(run)
    with Follower(one.run.events) as follower:
        ledger = Ledger()
        while True:
            supervisor = pulse(one.run, one.id)
            for fact, at in follower.read():
                ledger.apply(fact, at)
            if ledger.closed and supervisor is None:  # report and notifications included
                say(f"{one.run.path}: {ledger.state}{_because(ledger)}")
                if _unreported(one.run, ledger):
                    where = shlex.quote(str(one.run.path))
                    say(f"no report of its end is there: gpulaunch report {where}")
                return ledger.exit_status
            if supervisor is None:
                say(
                    f"{one.run.path}: interrupted, its supervisor is gone; go on with it:"
                    f" gpulaunch resume {one.run.path}"
                )
                return errors.SOME_JOB_FAILED
            with supervisor:
                follower.wait(also=[supervisor])


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


def _because(ledger: Ledger) -> str:
    return f" ({ledger.reason})" if ledger.reason else ""
