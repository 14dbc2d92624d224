"""`gpulaunch status`: every job's state; for waiting jobs, why."""

from __future__ import annotations

import click

from gpulaunch.cli.options import as_json, run_argument


@click.command("status")
@run_argument
@click.option("--all", "everything", is_flag=True, help="List every job.")
@as_json
def command(run: str | None, everything: bool, as_json: bool) -> None:
    """Show every job's state, and why jobs wait. RUN: the newest one here.

    \b
    gpulaunch status
    gpulaunch status --json | jq '.jobs[] | select(.state == "failed")'
    """
    from functools import partial

    from gpulaunch.cli.lookup import found
    from gpulaunch.cli.output import TypedPaths, print_json, stdout_console
    from gpulaunch.journal.codec import now
    from gpulaunch.journal.earlier import durations_before
    from gpulaunch.metrics.read import measured
    from gpulaunch.views.standing import Standing, print_status
    from gpulaunch.views.status import status_json

    one = found(run)
    paths = TypedPaths(one.run)
    digests = {job.name: job.digest for job in one.ledger.jobs.values()}
    earlier = partial(durations_before, one.run, digests)
    used, at, why = measured(one.run.metrics), now(), one.reasons()
    if as_json:
        absolute = paths.absolute()
        print_json(status_json(one.ledger, absolute, one.state, why, used, at, earlier))
        return
    told = Standing(one.ledger, paths, one.state, why, at, used, earlier, one.here)
    print_status(stdout_console(), told, everything)
