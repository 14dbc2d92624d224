"""`gpulaunch resume`: go on with a run."""

from __future__ import annotations

from typing import Any

import click

from gpulaunch.cli.options import (
    engine_options,
    only,
    per_gpu,
    pool_options_again,
    run_argument,
    run_options,
    run_options_of,
)


@click.command("resume")
@run_argument
@pool_options_again
@per_gpu
@only
@engine_options
@run_options
@click.option("--changed", is_flag=True, help="Also rerun what succeeded but was redefined since.")
@click.option("--recorded", is_flag=True, help="Use the run's own copy of the job file.")
@click.option(
    "--take-over", is_flag=True, help="A run on Slurm whose launcher died on another machine."
)
@click.option("--dry-run", is_flag=True, help="Print what would run, start nothing.")
def command(run: str | None, changed: bool, recorded: bool, take_over: bool, **options: Any) -> int:
    """Go on with a run: everything not yet succeeded, and what the job file has gained since.

    RUN is a run directory, a name, an id or a job file (its newest run); left out, the newest run
    under this directory, or under its nearest parent that has one.

    \b
    gpulaunch resume
    gpulaunch resume gpulaunch-runs/nanobodies-20261120-074215 --changed
    """
    from gpulaunch.app.resuming import resume
    from gpulaunch.cli.terminal import Terminal

    asked, terminal = run_options_of(options), Terminal(options)
    return resume(
        run, asked, terminal, changed=changed, recorded=recorded, take_over=take_over
    ).status
