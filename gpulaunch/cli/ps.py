"""`gpulaunch ps`: the runs alive on this machine."""

from __future__ import annotations

import click

from gpulaunch.cli.options import as_json


@click.command("ps")
@as_json
def command(as_json: bool) -> None:
    """List the runs alive on this machine, of all users.

    \b
    gpulaunch ps
    """
    from dataclasses import asdict

    from gpulaunch.cli.output import print_json, stdout_console
    from gpulaunch.control import live_runs
    from gpulaunch.views.runs import print_runs

    runs = live_runs()
    if as_json:
        print_json([{**asdict(run), "dir": run.dir and str(run.dir)} for run in runs])
    else:
        print_runs(stdout_console(), runs)
