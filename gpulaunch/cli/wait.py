"""`gpulaunch wait`: wait for a run's end; exit as the run did."""

from __future__ import annotations

import click

from gpulaunch import errors
from gpulaunch.cli.options import run_argument
from gpulaunch.core.ledger import Ledger


@click.command("wait")
@run_argument
def command(run: str | None) -> int:
    """Wait for a run's end; exits as `run` would have.

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
                return ledger.exit_status
            if supervisor is None:
                say(
                    f"{one.run.path}: interrupted, its supervisor is gone; go on with it:"
                    f" gpulaunch resume {one.run.path}"
                )
                return errors.SOME_JOB_FAILED
            with supervisor:
                follower.wait(also=[supervisor])


def _because(ledger: Ledger) -> str:
    return f" ({ledger.reason})" if ledger.reason else ""
