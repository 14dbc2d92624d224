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
    from gpulaunch.cli.lookup import found
    from gpulaunch.cli.output import TypedPaths, print_json, stdout_console
    from gpulaunch.journal.codec import now
    from gpulaunch.metrics.read import measured
    from gpulaunch.views.status import print_status, status_json

    one = found(run)
    paths = TypedPaths(one.run)
    if as_json:
        used = measured(one.run.metrics)
        told = status_json(one.ledger, paths.absolute(), one.state, one.reasons(), used, now=now())
        print_json(told)
        return
    print_status(
        stdout_console(), one.ledger, paths, one.state, one.reasons(), now(), everything=everything
    )
