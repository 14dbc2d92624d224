"""`gpulaunch retry`: run again only what failed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gpulaunch.cli.options import (
    Options,
    engine_options,
    per_gpu,
    pool_options_again,
    run_argument,
    run_options,
)


@click.command("retry")
@run_argument
@pool_options_again
@per_gpu
@engine_options
@run_options
@click.option("--recorded", is_flag=True, help="Use the run's own copy of the job file.")
@click.option("--dry-run", is_flag=True, help="Print what would run, start nothing.")
def command(run: str | None, **options: Any) -> int:
    """Run again only what failed, and what was skipped because of it.

    On a live run the jobs are put back into it, and the command returns at once.

    \b
    gpulaunch retry
    """
    from gpulaunch.cli import resuming
    from gpulaunch.journal.rundir import find

    return resuming.retry(find(run, Path.cwd()), Options.of(options))
