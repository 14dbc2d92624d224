"""`gpulaunch run`: a job list to its end, in the foreground."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gpulaunch.cli.options import (
    engine_options,
    job_file,
    only,
    per_gpu,
    pool_options,
    run_options,
    run_options_of,
    tells_exit_statuses,
)
from gpulaunch.errors import OF_A_RUN


@click.command("run")
@job_file
@click.argument("more", nargs=-1, metavar="")
@pool_options
@per_gpu
@only
@engine_options
@run_options
@click.option("--run-dir", type=click.Path(path_type=Path), help="Where the run is kept.")
@click.option("--dry-run", is_flag=True, help="Print the plan, start nothing.")
@click.option("--new", is_flag=True, help="Start afresh, whatever became of the last run.")
@click.option("--continue", "go_on", is_flag=True, help="Go on with the last run, or start one.")
@tells_exit_statuses(OF_A_RUN)
def command(jobs: Path, more: tuple[str, ...], new: bool, go_on: bool, **options: Any) -> int:
    """Run a job list to its end, in the foreground.

    Exit status:

    {statuses}

    \b
    gpulaunch run jobs.yaml
    gpulaunch run jobs.yaml --simulate 2      on pretend cards, on any machine
    gpulaunch run jobs.yaml --engine slurm    on a cluster: Slurm says when and where
    """
    from gpulaunch.app.starting import run
    from gpulaunch.cli.terminal import Terminal
    from gpulaunch.errors import UsageError

    if more:
        raise UsageError(
            f"run takes one job file, and {jobs} {' '.join(more)} is more: a run for each, or one"
            " file with all jobs; one command: gpulaunch exec -- CMD"
        )
    if go_on and new:
        raise UsageError("--new starts afresh and --continue goes on: choose one")
    new = new or options["dry_run"]
    asked, terminal = run_options_of(options), Terminal(options)
    return run(jobs, asked, terminal, run_dir=options["run_dir"], new=new, go_on=go_on).status
